// SPDX-License-Identifier: GPL-3.0-or-later
// The portal inside JupyterLab: its warnings, that the session is idle, nearly over, or that a GPU of it is out of order;
// and a line at the top with the time that is left and what its GPUs do. In the form in which JupyterLab loads extensions
// that are built already; there is nothing to build.
(() => {
  "use strict";
  const EVERY_MS = 10000;
  let scope = {};

  function settings() {
    const found = document.getElementById("jupyter-config-data");
    return found ? JSON.parse(found.textContent) : {};
  }

  function bar() {
    const made = document.createElement("div");
    made.id = "baremetal-gpu-portal";
    made.setAttribute("role", "alert");
    made.style.cssText =
      "position:fixed;top:0;left:0;right:0;z-index:10000;padding:8px 16px;text-align:center;" +
      "background:#ffe8a3;color:#1a1a1a;font:16px sans-serif;border-bottom:2px solid #8a6100";
    return made;
  }

  // The hub takes no orders from pages of sessions, so the button is on a page of the hub.
  function show(text, home, keep) {
    const shown = document.getElementById("baremetal-gpu-portal");
    if (shown && shown.dataset.text === text) return;
    if (shown) shown.remove();
    if (!text) return;
    const made = bar();
    made.dataset.text = text;
    made.append(text + " ");
    const link = document.createElement("a");
    link.href = home;
    link.target = "_blank";
    link.rel = "noopener";
    link.style.color = "#003d99";
    link.textContent = keep ? "Keep it" : "My sessions";
    made.append(link);
    document.body.append(made);
  }

  // The line at the top; null in a JupyterLab that has no such place.
  async function placed(app, home) {
    try {
      const [widgets] = Object.values(scope["@lumino/widgets"]);
      const { Widget } = (await widgets.get())();
      const link = document.createElement("a");
      link.href = home;
      link.target = "_blank";
      link.rel = "noopener";
      link.title = "My sessions in the portal";
      link.style.cssText = "color:var(--jp-ui-font-color1);padding:0 12px;white-space:nowrap;line-height:28px";
      const widget = new Widget();
      widget.id = "baremetal-gpu-portal-now";
      widget.node.append(link);
      app.shell.add(widget, "top", { rank: 900 });
      return link;
    } catch (error) {
      return null;
    }
  }

  async function ask(hub, server, line) {
    try {
      const answer = await fetch(hub + "portal/idle", { credentials: "include" });
      const told = (await answer.json())[server] || {};
      show(told.text || "", hub + "home", told.keep !== false);
      if (line && line.textContent !== (told.now || "")) line.textContent = told.now || "";
    } catch (error) {
      // The hub is away, or its login is over: what it said last stays.
    }
  }

  async function activate(app) {
    const { hubHost, hubPrefix, hubServerName } = settings();
    if (!hubPrefix) return;
    // The hub has another host, where sessions have origins of their own.
    const hub = (hubHost || "") + hubPrefix;
    const line = await placed(app, hub + "home");
    ask(hub, hubServerName || "", line);
    setInterval(() => ask(hub, hubServerName || "", line), EVERY_MS);
  }

  const plugin = { id: "baremetal-gpu-portal:idle", autoStart: true, activate };
  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB["baremetal-gpu-portal"] = {
    init: shared => {
      scope = shared;
    },
    get: async () => () => ({ __esModule: true, default: plugin }),
  };
})();
