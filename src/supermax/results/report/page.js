"use strict";
// Draws the figures one after the other, so that the page stays responsive. Before printing, draws
// all of them at the width of paper.
(() => {
  const config = {
    displaylogo: false,
    responsive: true,
    // Only these buttons: another one of Plotly would upload the data to its servers.
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
  const drawRest = () => {
    if (!waiting.length) return;
    drawNext();
    setTimeout(drawRest, 0);
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

  if (waiting.length) setTimeout(drawRest, 0);
})();
