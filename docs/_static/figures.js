// Draws each figure of a page from plotly's data, once it comes near the screen. Without scripts, the picture inside stays.
function draw(place) {
  const {data, layout} = JSON.parse(place.dataset.figure);
  place.replaceChildren();
  Plotly.newPlot(place, data, layout, {responsive: true, displaylogo: false, modeBarButtonsToRemove: ["sendChartToCloud"]});
}

const near = new IntersectionObserver((seen) => {
  for (const {isIntersecting, target} of seen) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    draw(target);
  }
}, {rootMargin: "1000px"});
for (const place of document.querySelectorAll("div.figure[data-figure]")) near.observe(place);
