// What a page can do more with a script: nothing depends on it.
"use strict";

document.documentElement.classList.add("script");

// A button with data-copy puts the text of the element with that id into the clipboard.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copy);
  const said = button.dataset.said ??= button.textContent;
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source);
    button.textContent = "Press Ctrl+C";
  }
  clearTimeout(Number(button.dataset.timer));
  button.dataset.timer = setTimeout(() => { button.textContent = said; }, 2000);
});

// A secret that was shown is not shown again by going back in the history.
addEventListener("pageshow", (event) => {
  if (event.persisted && document.querySelector("[data-secret]")) location.replace("/dashboard/");
});

// A form is sent once, however often its button is pressed.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if (form.dataset.sent) event.preventDefault();
  form.dataset.sent = "true";
});
addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
});

// A search that is refused is made once more as a page, which says why.
document.addEventListener("htmx:responseError", (event) => {
  if (event.target.matches("form")) event.target.submit();
});

// What is live rests while nobody sees it, while the keyboard is in it, and while the box
// beside it is not ticked.
document.addEventListener("htmx:beforeRequest", (event) => {
  const part = event.target;
  if (!part.getAttribute("hx-trigger")?.startsWith("every")) return;
  const off = part.closest("[data-live]")?.querySelector("input:not(:checked)");
  if (document.hidden || off || part.querySelector(":focus-visible")) event.preventDefault();
});
