/* What the pages cannot do without a program: headings for the cells of a table on a telephone. Without it, all is there
   to read. */
"use strict";

function labelCells(table) {
  const names = [...table.querySelectorAll("th")].map((head) => head.textContent.trim());
  for (const row of table.querySelectorAll("tbody tr")) {
    [...row.cells].slice(1).forEach((cell, place) => {
      const what = cell.textContent.trim() ? "name" : "empty";
      cell.dataset[what] = names[place + 1];
    });
  }
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".table-wrapper table").forEach(labelCells);
});
