// Values under the pointer: the nearest place gets a rule, the legend gets its values.
for (const figure of document.querySelectorAll(".chart")) {
  const plot = figure.querySelector(".plot");
  if (!plot) continue;
  const pane = plot.querySelector(".pane"), rule = plot.querySelector(".rule");
  const places = plot.dataset.places.split(" ").map(Number), names = plot.dataset.names.split("|");
  const entries = [...figure.querySelectorAll(".legend li")].map((entry) => [entry.querySelector("output"), entry.dataset.values.split("|")]);
  const name = figure.querySelector(".xtitle output");
  const show = (event) => {
    const box = pane.getBoundingClientRect(), x = (event.clientX - box.left) / box.width;
    let at = 0;
    places.forEach((place, k) => { if (Math.abs(place - x) < Math.abs(places[at] - x)) at = k; });
    rule.style.left = places[at] * 100 + "%";
    rule.style.opacity = .5;
    name.textContent = names[at];
    for (const [output, values] of entries) output.textContent = values[at] ?? "";
  };
  const hide = () => {
    rule.style.opacity = 0;
    name.textContent = "";
    for (const [output] of entries) output.textContent = "";
  };
  plot.addEventListener("pointermove", show);
  plot.addEventListener("pointerdown", show);
  plot.addEventListener("pointerleave", hide);
}
for (const code of document.querySelectorAll(".command")) {
  const copy = async () => {
    try { await navigator.clipboard.writeText(code.textContent); } catch { getSelection().selectAllChildren(code); return; }
    code.classList.add("copied");
    setTimeout(() => code.classList.remove("copied"), 1200);
  };
  code.addEventListener("click", copy);
  code.addEventListener("keydown", (event) => { if (event.key === "Enter") copy(); });
}
