(() => {
  const { base_url: base, user, xsrf_token: token } = window.jhdata;
  const failure = document.getElementById("portal-failure");
  const words = new URLSearchParams({ _xsrf: token });
  async function end(button, server, body) {
    button.disabled = true;
    const what = server ? "servers/" + encodeURIComponent(server) : "server";
    const headers = { "Content-Type": "application/json" };
    try {
      const answer = await fetch(base + "api/users/" + encodeURIComponent(user) + "/" + what + "?" + words,
        { method: "DELETE", credentials: "same-origin", headers, body });
      if (answer.ok) return location.reload();
      failure.textContent = (await answer.json()).message || "It is not stopped. To do: try again.";
    } catch (error) {
      failure.textContent = "The portal does not answer. To do: try again.";
    }
    failure.hidden = false;
    button.disabled = false;
  }
  for (const button of document.querySelectorAll("[data-stop]")) {
    button.addEventListener("click", () => end(button, button.dataset.stop));
  }
  for (const button of document.querySelectorAll("[data-forget]")) {
    button.addEventListener("click", () => end(button, button.dataset.forget, JSON.stringify({ remove: true })));
  }
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    });
  }
  const made = document.getElementById("portal-new");
  if (made) made.addEventListener("submit", event => {
    event.preventDefault();
    location.href = made.dataset.base + document.getElementById("portal-new-name").value;
  });
  const lines = [...document.querySelectorAll("[data-now-of]")];
  if (lines.length) setInterval(async () => {
    if (document.hidden) return;
    try {
      const told = await (await fetch(base + "portal/idle", { credentials: "same-origin" })).json();
      for (const line of lines) line.textContent = (told[line.dataset.nowOf] || {}).now || "";
    } catch (error) {
      // The hub is away: what it said last stays.
    }
  }, 15000);
})();
