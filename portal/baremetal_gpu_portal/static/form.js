(() => {
const form = document.getElementById("spawn_form");
const answer = document.getElementById("portal-answer");
const details = document.getElementById("portal-details");
const own = document.getElementById("portal-environment");
const list = document.getElementById("portal-environments");
const search = document.getElementById("portal-search");
const other = document.getElementById("portal-preset-other");
const all = [...list.options];
let asked = "";
let busy = false;
let changed = false;
function listed() {
  const is_listed = all.slice(0, -1).some(one => one.value === own.value);
  if (document.activeElement !== own) list.value = is_listed ? own.value : "";
  document.getElementById("portal-own").hidden = list.value !== "";
}
function mark(name, text) {
  const field = form.elements.namedItem(name);
  const place = document.getElementById("portal-" + name + "-error");
  if (place.textContent !== text) place.textContent = text;
  field.classList.toggle("is-invalid", text !== "");
  if (text) field.setAttribute("aria-invalid", "true");
  else field.removeAttribute("aria-invalid");
  if (text) details.open = true;
}
async function ask(again) {
  const words = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (name !== "_xsrf") words.set(name, value);
  if (busy || document.hidden || (!again && words.toString() === asked)) return;
  busy = true;
  try {
    const told = await fetch(answer.dataset.url + "?" + words, { credentials: "same-origin" });
    const row = await told.json();
    asked = words.toString();
    if (answer.textContent !== row.text) answer.textContent = row.text;
    answer.className = "alert alert-" + ({ now: "success", never: "danger" }[row.answer] || "warning");
    for (const place of form.querySelectorAll("[data-error-of]")) {
      const text = (row.fields || {})[place.dataset.errorOf] || "";
      // What was refused stays beside its field until something is chosen.
      if (text || changed) mark(place.dataset.errorOf, text);
    }
  } catch (error) {
    answer.textContent = "What is free cannot be asked at present.";
  }
  busy = false;
}
for (const radio of form.querySelectorAll("[data-fields]")) radio.addEventListener("change", () => {
  const chosen = JSON.parse(radio.dataset.fields);
  for (const name of Object.keys(chosen)) form.elements.namedItem(name).value = chosen[name];
  listed();
  ask(false);
});
if (other) other.addEventListener("change", () => { details.open = true; });
details.addEventListener("input", event => {
  if (other && event.target !== search) other.checked = true;
});
list.addEventListener("change", () => {
  own.value = list.value;
  listed();
  if (!list.value) own.focus();
  ask(false);
});
if (search) search.addEventListener("input", () => {
  const words = search.value.toLowerCase().split(" ").filter(Boolean);
  list.replaceChildren(...all.filter(one => !one.value || words.every(word => one.value.toLowerCase().includes(word))));
  list.value = own.value;
});
form.addEventListener("invalid", () => { details.open = true; }, true);
form.addEventListener("input", () => {
  changed = true;
  ask(false);
});
setInterval(() => ask(true), 2000);
listed();
ask(true);
})();
