"use strict";
// Inside Airflow's frame the pages follow its colour scheme, and Airflow's own page follows links out of it.
(() => {
  const root = document.documentElement;

  const parentDocument = () => {
    try {
      return window.parent === window ? null : window.parent.document;
    } catch {
      return null; // another origin: the pages look as the system does
    }
  };
  const outer = parentDocument();

  const followTheme = () => {
    const theirs = outer.documentElement;
    const dark = theirs.classList.contains("dark") || theirs.dataset.theme === "dark";
    root.dataset.theme = dark ? "dark" : "light";
  };
  if (outer) {
    followTheme();
    new MutationObserver(followTheme).observe(outer.documentElement, { attributes: true });
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-out]");
    if (!link || !outer || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const theirs = outer.createElement("a");
    theirs.href = link.href;
    outer.body.append(theirs);
    theirs.click();
    theirs.remove();
  });

  // In a narrow window a row is a card, and each of its cells says which column it is of.
  const label = () => {
    for (const table of document.querySelectorAll(".scroll table")) {
      const names = [...table.tHead.rows[0].cells].map((head) => head.textContent);
      for (const row of table.tBodies[0].rows)
        [...row.cells].forEach((cell, at) => { cell.dataset.label = names[at]; });
    }
  };
  label();

  const refresh = document.getElementById("refresh");
  refresh.hidden = false;
  refresh.addEventListener("click", () => window.location.reload());

  // Pages that change by themselves are read again, unless somebody is at work in them or has stopped it.
  const seconds = Number(document.body.dataset.refresh);
  const auto = document.getElementById("auto");
  const STOPPED = "airflow-eos-refresh-stopped";
  const stored = (change) => {
    try {
      return change(window.localStorage);
    } catch {
      return null; // storage is off: the choice lasts as long as the page
    }
  };
  if (seconds) {
    document.getElementById("every").hidden = auto.hidden = false;
    auto.checked = stored((storage) => storage.getItem(STOPPED)) === null;
    auto.addEventListener("change", () =>
      stored((storage) => (auto.checked ? storage.removeItem(STOPPED) : storage.setItem(STOPPED, "1"))),
    );
    const main = document.getElementById("main");
    const atWork = () =>
      document.hidden || main.contains(document.activeElement) || main.querySelector("details[open]");
    const readAgain = async () => {
      if (!auto.checked || atWork()) return;
      try {
        const answer = await fetch(window.location.href);
        const next = new DOMParser().parseFromString(await answer.text(), "text/html");
        const fresh = next.getElementById("main");
        if (!fresh || !auto.checked || atWork()) return;
        main.replaceChildren(...fresh.childNodes);
        label();
      } catch {
        // Airflow gave no answer: the next one counts
      }
    };
    window.setInterval(readAgain, seconds * 1000);
  }

  const button = document.getElementById("verify");
  if (!button) return;
  const said = document.getElementById("verified");

  const say = (kind, text, lines) => {
    said.className = kind;
    said.textContent = text;
    if (!lines.length) return;
    const list = document.createElement("ul");
    list.setAttribute("aria-label", "Partitions");
    for (const line of lines) {
      const item = document.createElement("li");
      item.textContent = line;
      list.append(item);
    }
    said.append(list);
  };

  const line = (one) =>
    `${one.topic}-${one.partition}: ${one.outcome}, ${one.found} of ${one.recorded} records` +
    (one.detail ? ` (${one.detail})` : "");

  button.addEventListener("click", async () => {
    button.disabled = true;
    say("", "Reading the output again…", []);
    try {
      const answer = await fetch(`${document.body.dataset.base}/api/v1/verify`, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ pipeline: button.dataset.pipeline, run_key: button.dataset.key }),
      });
      const found = await answer.json();
      if (answer.ok) {
        const text = found.ok
          ? "Every record that the run wrote is there, once."
          : found.findings.some((one) => one.outcome === "mismatch")
            ? "The output is not what the run wrote."
            : "Some of what the run wrote was deleted since, or cannot be read now: it was not compared.";
        say(found.ok ? "ok" : "bad", text, found.findings.map(line));
      } else {
        say("bad", `${found.title || "Not verified"}: ${found.detail || answer.status}`, []);
      }
    } catch {
      say("bad", "Airflow gave no answer.", []);
    }
    button.disabled = false;
  });
})();
