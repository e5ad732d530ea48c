"use strict";

// Sorts the table of a clicked heading: upwards first, downwards at the next click. Cells without a key
// stay last either way; equal cells keep their order.
(() => {
  const keyOf = (row, column) => row.cells[column].dataset.key;

  const sort = (heading) => {
    const table = heading.closest("table");
    const body = table.tBodies[0];
    const column = heading.cellIndex;
    const downwards = heading.getAttribute("aria-sort") === "ascending";
    const rows = [...body.rows];
    const present = rows.map((row) => keyOf(row, column)).filter((key) => key !== undefined);
    const numeric = present.every((key) => key !== "" && Number.isFinite(Number(key)));
    const compare = numeric
      ? (a, b) => Number(a) - Number(b)
      : (a, b) => a.localeCompare(b, "en", { numeric: true });
    rows.sort((one, other) => {
      const a = keyOf(one, column);
      const b = keyOf(other, column);
      if (a === undefined || b === undefined) {
        return (a === undefined) - (b === undefined);
      }
      return downwards ? compare(b, a) : compare(a, b);
    });
    for (const other of table.tHead.rows[0].cells) {
      other.removeAttribute("aria-sort");
    }
    heading.setAttribute("aria-sort", downwards ? "descending" : "ascending");
    body.append(...rows);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("table.sortable thead button");
    if (button) {
      sort(button.closest("th"));
    }
  });

  // Paper has no clicks: everything is printed open.
  const printing = () => document.querySelectorAll("details").forEach((panel) => { panel.open = true; });
  window.addEventListener("beforeprint", printing);
})();
