"use strict";
(() => {
  const form = document.getElementById("filters");
  if (!form) return;
  const data = JSON.parse(document.getElementById("data").textContent);
  const text = document.getElementById("text");
  const shown = document.getElementById("shown");
  const boxes = [...form.querySelectorAll("[name=status]")];

  const rows = [...document.querySelectorAll("tr.row")].map((tr) => {
    const buttons = [...tr.querySelectorAll("[data-c]")];
    const cells = buttons.map((button) => data.cells[+button.dataset.c]);
    const words = cells.map((c) => [c.id, c.reason, c.stage, c.tier, data.blocks[c.b].title].join(" "));
    return { tr, buttons, cells, text: words.join(" ").toLowerCase() };
  });
  const findings = [...document.querySelectorAll(".finding")].map((node) => ({ node, text: node.textContent.toLowerCase() }));
  const bodies = [...document.querySelectorAll(".matrix tbody")];

  // Every node is made here, and every string from a survey enters as a text node or an attribute's value.
  const SVG = "http://www.w3.org/2000/svg";
  const make = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children.filter((child) => child !== null && child !== ""));
    return node;
  };
  const h = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);
  const svg = (tag, attributes, ...children) => make(document.createElementNS(SVG, tag), attributes, children);

  const badge = (status) => {
    const look = data.looks[status || "simulated"];
    return h("span", { class: "s s-" + (status || "simulated") }, h("span", { "aria-hidden": "true" }, look.icon), " " + look.word);
  };
  const time = (s) => (typeof s !== "number" ? "" : s < 1 ? +(s * 1000).toPrecision(3) + " ms" : +s.toPrecision(3) + " s");
  const show = (value) => (typeof value === "number" ? String(+value.toPrecision(3)) : String(value));

  // An error against its limit: the limit is the mark at three quarters, and what is over it is cut at the end.
  const bar = (value, limit) => {
    if (!(limit > 0)) return "";
    const part = typeof value === "number" ? Math.min(value / limit, 4 / 3) * 0.75 : 1;
    const over = !(value <= limit);
    return svg("svg", { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { class: "bar-back", width: 100, height: 8 }),
      svg("rect", { class: over ? "bar-over" : "bar-fit", width: Math.max(part * 100, 1), height: 8 }),
      svg("rect", { class: "bar-limit", x: 75, width: 1, height: 8 }));
  };

  // Columns in which no line says anything are left out.
  const table = (caption, heads, lines) => {
    const used = heads.map((_, i) => lines.some((line) => line[i] !== ""));
    const kept = (cells) => cells.filter((_, i) => used[i]);
    const names = kept(heads);
    return h("table", { class: "plain stack" },
      h("caption", { class: "vh" }, caption),
      h("thead", {}, h("tr", {}, ...names.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, ...lines.map(kept).map(([first, ...rest]) =>
        h("tr", {}, h("th", { scope: "row" }, first), ...rest.map((cell, i) => h("td", { "data-head": names[i + 1] }, cell))))));
  };

  const errors = (stages) => {
    const lines = stages.flatMap((stage) => (stage.errors || []).flatMap((e) => [
      [stage.name, e.name, e.dtype, "n, the whole", show(e.n), show(e.n_limit), bar(e.n, e.n_limit)],
      ...(e.s_limit ? [[stage.name, e.name, e.dtype, "slice, the worst", show(e.s || 0), show(e.s_limit), bar(e.s || 0, e.s_limit)]] : []),
    ]));
    return lines.length ? table("Errors", ["Stage", "Tensor", "dtype", "Norm over", "Error (eps)", "Limit (eps)", "Against the limit"], lines) : "";
  };

  const stageLine = (stage) => [
    stage.name, badge("status" in stage ? stage.status : "ok"), time(stage.seconds || 0),
    Object.entries(stage.dtypes || {}).map(([name, dtype]) => name + ": " + dtype).join(", "),
    Object.entries(stage.numbers || {}).map(([name, value]) => name + " " + show(value)).join(", "),
    stage.exception ? stage.exception.type + ": " + (stage.exception.text || "") : stage.reason || "",
  ];

  const detail = (cell) => {
    const stages = cell.stages || [];
    const about = [cell.tier, cell.evidence, time(cell.seconds || 0), "survey " + cell.survey + ", " + cell.started, data.blocks[cell.b].title];
    return h("div", { class: "inside" },
      h("h4", {}, h("code", {}, cell.id), " ", badge(cell.status)),
      h("p", { class: "quiet" }, about.filter(Boolean).join(" · ")),
      cell.reason ? h("p", {}, cell.stage ? h("strong", {}, cell.stage + ": ") : "", cell.reason) : "",
      h("div", {},
        stages.length ? table("Stages", ["Stage", "Status", "Time", "dtypes", "Numbers", "Why"], stages.map(stageLine)) : "",
        errors(stages)),
      ...(cell.notes || []).map((note) => h("p", { class: "quiet" }, "Note: " + note)),
      h("details", { class: "environment" }, h("summary", {}, "Environment"),
        h("dl", {}, ...data.blocks[cell.b].environment.map(([group, field, value]) =>
          h("div", {}, h("dt", {}, field + " ", h("span", { class: "quiet" }, group)), h("dd", {}, value))))));
  };

  let open = null;
  const close = () => {
    if (!open) return;
    open.button.setAttribute("aria-expanded", "false");
    open.tr.remove();
    open = null;
  };
  const expand = (button) => {
    const again = open && open.button === button;
    close();
    if (again) return;
    const row = button.closest("tr");
    const tr = h("tr", { class: "detail" }, h("td", { colspan: row.children.length }, detail(data.cells[+button.dataset.c])));
    row.after(tr);
    button.setAttribute("aria-expanded", "true");
    open = { button, tr };
  };

  const write = () => {
    const hash = new URLSearchParams();
    if (text.value) hash.set("q", text.value);
    const chosen = boxes.filter((box) => box.checked).map((box) => box.value);
    if (chosen.length) hash.set("status", chosen.join(","));
    if (open) {
      const cell = data.cells[+open.button.dataset.c];
      hash.set("cell", cell.b + "/" + cell.id);
    }
    history.replaceState(null, "", "#" + hash);
  };

  const filter = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    let count = 0;
    for (const row of rows) {
      const match = words.every((word) => row.text.includes(word)) && (!chosen.size || row.cells.some((c) => chosen.has(c.status)));
      row.tr.hidden = !match;
      if (match) count += 1;
      row.buttons.forEach((button, i) => button.classList.toggle("dim", chosen.size > 0 && !chosen.has(row.cells[i].status)));
    }
    for (const body of bodies) body.hidden = !body.querySelector("tr.row:not([hidden])");
    for (const { node, text: own } of findings) {
      node.hidden = !(words.every((word) => own.includes(word)) && (!chosen.size || chosen.has(node.dataset.status)));
    }
    if (open && open.button.closest("tr").hidden) close();
    shown.textContent = count + " of " + rows.length + " rows";
  };

  const read = () => {
    if (location.hash && !location.hash.includes("=")) return;
    const hash = new URLSearchParams(location.hash.slice(1));
    text.value = hash.get("q") || "";
    const chosen = (hash.get("status") || "").split(",");
    for (const box of boxes) box.checked = chosen.includes(box.value);
    filter();
    const wanted = hash.get("cell");
    const at = wanted ? data.cells.findIndex((c) => c.b + "/" + c.id === wanted) : -1;
    const button = at < 0 ? null : document.querySelector('[data-c="' + at + '"]');
    if (button && !(open && open.button === button)) {
      expand(button);
      button.closest("tr").scrollIntoView({ block: "center" });
    }
  };

  for (const { buttons } of rows) for (const button of buttons) button.setAttribute("aria-expanded", "false");
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-c]");
    if (button) { expand(button); write(); }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !open) return;
    const { button } = open;
    close(); write(); button.focus();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => { filter(); write(); });
  addEventListener("hashchange", read);
  form.hidden = false;
  read();
})();
