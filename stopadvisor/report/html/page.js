"use strict";
// Copies a table as CSV from the link that holds it; everything else works without a script.
const say = document.getElementById("said");

function copyAsText(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.setAttribute("readonly", "");
  area.className = "outside";
  document.body.appendChild(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done ? Promise.resolve() : Promise.reject(new Error("copy refused"));
}

for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const link = button.parentElement.querySelector("a[download]");
    const text = decodeURIComponent(link.href.slice(link.href.indexOf(",") + 1));
    const asked = navigator.clipboard ? navigator.clipboard.writeText(text) : Promise.reject();
    asked.catch(() => copyAsText(text)).then(
      () => { say.textContent = `${link.download} copied`; button.textContent = "Copied"; },
      () => { say.textContent = "Copying was refused: use the download"; },
    );
  });
}

// Paper shows what is folded away on a screen, but for tables of several pages.
let folded = [];
window.addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open]):not([data-long])")];
  for (const part of folded) part.open = true;
});
window.addEventListener("afterprint", () => {
  for (const part of folded) part.open = false;
});
