/* What the pages cannot do without a program: headings for the cells of a table on a telephone, and a search in what
   docs/troubleshooting.md quotes. Without it, all is there to read. */
"use strict";

const squeezed = (text) => text.replace(/\s+/g, " ").trim().toLowerCase();

/* Whether a text, such as that of an event, has an excerpt in it, whose "…" stands for what varies. */
function has(text, excerpt) {
  let from = 0;
  return excerpt.split("…").map(squeezed).every((piece) => {
    from = text.indexOf(piece, from);
    return from >= 0 && (from += piece.length) >= 0;
  });
}

function labelCells(table) {
  const names = [...table.querySelectorAll("th")].map((head) => head.textContent.trim());
  for (const row of table.querySelectorAll("tbody tr")) {
    [...row.cells].slice(1).forEach((cell, place) => {
      const what = cell.textContent.trim() ? "name" : "empty";
      cell.dataset[what] = names[place + 1];
    });
  }
}

/* An entry is a row, or an item of a list, below a heading; `texts` are what it quotes. */
function entries(page) {
  return [...page.querySelectorAll("section section tbody tr, section section li")].map((element) => {
    const quoting = element.cells ? element.cells[0] : element;
    const texts = [...quoting.querySelectorAll("code")].map((code) => code.textContent);
    return { element, all: squeezed(element.textContent), texts: texts.filter((text) => text.length > 8) };
  });
}

function addSearch(page) {
  const found = entries(page);
  const field = document.createElement("input");
  field.type = "search";
  field.className = "find";
  field.placeholder = "Paste an event or a line of the log";
  field.setAttribute("aria-label", field.placeholder);
  field.addEventListener("input", () => {
    const asked = squeezed(field.value);
    for (const entry of found) {
      const fits = entry.all.includes(asked) || entry.texts.some((text) => has(asked, text));
      entry.element.hidden = !fits;
    }
    for (const section of page.querySelectorAll("section section")) {
      const mine = found.filter((entry) => section.contains(entry.element));
      section.hidden = mine.every((entry) => entry.element.hidden) && asked !== "";
    }
    for (const part of field.parentElement.children) {
      if (part.matches("p, ul, div")) part.hidden = asked !== "";
    }
    const count = found.filter((entry) => !entry.element.hidden).length;
    answer.textContent = asked && (count ? "" : "Nothing here quotes it: run dra-driver doctor.");
  });
  const answer = document.createElement("output");
  page.querySelector("h1").after(field, answer);
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".table-wrapper table").forEach(labelCells);
  const page = document.querySelector("section#troubleshooting");
  if (page) addSearch(page);
});
