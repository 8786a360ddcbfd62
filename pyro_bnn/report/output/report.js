"use strict";
// The page is complete without this script. It lets readers sort tables, enlarge figures and
// choose between light and dark.

// A click on a heading sorts by its column, the next one the other way round.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const direction = heading.ariaSort === "ascending" ? "descending" : "ascending";
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", direction);
      const body = table.tBodies[0];
      body.append(...sorted([...body.rows], column, direction === "ascending" ? 1 : -1));
    });
  });
}

// Rows by the values behind a column; equal ones keep their order, blanks come last either way.
function sorted(rows, column, sign) {
  const value = (row) => row.cells[column].dataset.value;
  const compare = (a, b) => (a === b ? 0 : isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
  const filled = rows.filter((row) => value(row) !== undefined);
  const blank = rows.filter((row) => value(row) === undefined);
  return [...filled.sort((a, b) => sign * compare(value(a), value(b))), ...blank];
}

// A figure opens in a dialog; Escape, its button and a click beside it close it.
const dialog = document.getElementById("enlarged");
for (const figure of document.querySelectorAll("figure")) {
  const button = figure.querySelector("button.enlarge");
  const picture = figure.querySelector(".picture");
  const open = () => {
    button.focus(); // where the focus returns to
    dialog.querySelector("h2").textContent = figure.querySelector("h3").textContent;
    dialog.querySelector(".view").replaceChildren(picture.cloneNode(true));
    dialog.showModal();
  };
  button.hidden = false;
  button.addEventListener("click", open);
  picture.classList.add("opens");
  picture.addEventListener("click", open);
}
dialog.querySelector("button").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close();
});

// Light or dark: as the system says until the reader chooses.
const appearance = document.getElementById("appearance");
const system = matchMedia("(prefers-color-scheme: dark)");
const chosen = document.documentElement.dataset;
const other = () => ((chosen.colours ?? (system.matches ? "dark" : "light")) === "dark" ? "light" : "dark");
function label() {
  appearance.textContent = other() === "dark" ? "Dark colours" : "Light colours";
}
appearance.addEventListener("click", () => {
  chosen.colours = other();
  label();
});
system.addEventListener("change", label);
label();
appearance.hidden = false;
