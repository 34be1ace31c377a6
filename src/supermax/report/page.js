"use strict";
// Draws the figures one after the other, so that the page can be read meanwhile. Prints them all,
// at the width of paper.
(() => {
  const config = {
    displaylogo: false,
    responsive: true,
    // These only: Plotly has one more that would send the data to its makers.
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    plotlyServerURL: "",
  };
  const waiting = [...document.querySelectorAll("script[data-plot]")];
  const drawn = [];
  const root = document.documentElement;

  const drawNext = () => {
    const block = waiting.shift();
    const place = document.getElementById(`plot-${block.dataset.plot}`);
    const { data, layout } = JSON.parse(block.textContent);
    Plotly.newPlot(place, data, layout, config);
    drawn.push(place);
    if (!waiting.length) root.dataset.drawn = "all";
  };
  const goOn = () => {
    if (!waiting.length) return;
    drawNext();
    setTimeout(goOn, 0);
  };

  const PAPER = 680;
  const resize = (width) => {
    for (const place of drawn) {
      const share = place.closest(".small, .halves") ? 2 : 1;
      const to = width ? { width: width / share - (share > 1 ? 10 : 0) } : { width: null, autosize: true };
      Plotly.relayout(place, to);
    }
  };
  addEventListener("beforeprint", () => {
    while (waiting.length) drawNext();
    resize(PAPER);
  });
  addEventListener("afterprint", () => resize(null));

  if (waiting.length) setTimeout(goOn, 0);
})();
