// Draws each figure of a notebook's page from plotly's data. Without scripts, the picture inside it stays.
for (const place of document.querySelectorAll("div.figure[data-figure]")) {
  const {data, layout} = JSON.parse(place.dataset.figure);
  place.replaceChildren();
  Plotly.newPlot(place, data, layout, {responsive: true, displaylogo: false, modeBarButtonsToRemove: ["sendChartToCloud"]});
}
