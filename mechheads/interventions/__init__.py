"""Interventions: rules that give a head a new activation, and so a new z."""
