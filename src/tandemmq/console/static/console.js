"use strict";
// Times in the reader's zone, the menu of narrow screens, colors, and live pages. Everything works without it.

function localTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(element.dateTime);
    if (!isNaN(moment)) {
      const two = (number) => String(number).padStart(2, "0");
      const day = `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())}`;
      const time = `${two(moment.getHours())}:${two(moment.getMinutes())}:${two(moment.getSeconds())}`;
      element.textContent = `${day} ${time}`;
    }
  }
}

function nameZone() {
  const zone = document.getElementById("zone");
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (name !== "UTC") zone.textContent = `times in ${name}; hover over a time for UTC`;
}

// A box that scrolls must be reachable by keyboard; one that does not must not be in the way.
function openBoxes() {
  for (const box of document.querySelectorAll(".wide:not([tabindex]), pre:not([tabindex]), [data-opened]")) {
    if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) {
      box.dataset.opened = "";
      box.tabIndex = 0;
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", box.querySelector("caption, th")?.textContent.trim() || "Content");
    } else {
      for (const name of ["data-opened", "tabindex", "role", "aria-label"]) box.removeAttribute(name);
    }
  }
}

function foldMenu() {
  const button = document.getElementById("menu-button");
  const menu = document.getElementById("menu");
  if (!button || !menu) return;
  button.addEventListener("click", () => {
    const isOpen = menu.classList.toggle("open");
    button.setAttribute("aria-expanded", String(isOpen));
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && menu.classList.contains("open")) {
      menu.classList.remove("open");
      button.setAttribute("aria-expanded", "false");
      button.focus();
    }
  });
}

function submitTheme() {
  const select = document.getElementById("theme");
  if (!select) return;
  document.getElementById("theme-set").hidden = true;
  select.addEventListener("change", () => select.form.submit());
}

function keepLive() {
  const main = document.getElementById("content");
  const button = document.getElementById("live");
  if (!main || !main.dataset.refresh || !button) return;
  let isLive = sessionStorage.getItem("live") !== "off";
  const show = () => {
    button.setAttribute("aria-pressed", String(isLive));
    button.textContent = isLive ? "Live" : "Paused";
  };
  button.hidden = false;
  show();
  button.addEventListener("click", () => {
    isLive = !isLive;
    sessionStorage.setItem("live", isLive ? "on" : "off");
    show();
  });
  const isBusy = () => {
    const active = document.activeElement;
    const selection = document.getSelection();
    return (active && active !== main && main.contains(active)) || (selection && !selection.isCollapsed);
  };
  const refresh = async () => {
    if (isLive && !document.hidden && !isBusy()) {
      try {
        const answer = await fetch(location.href, { headers: { "X-Refresh": "1" }, redirect: "manual" });
        if (answer.type === "opaqueredirect") return location.reload();
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const fresh = page.getElementById("content");
        if (fresh && isLive && !isBusy()) {
          localTimes(fresh);
          main.replaceChildren(...fresh.childNodes);
          openBoxes();
        }
        main.classList.remove("stale");
      } catch {
        main.classList.add("stale");
        button.textContent = "Console not reachable";
      }
    }
    setTimeout(refresh, main.dataset.refresh * 1000);
  };
  setTimeout(refresh, main.dataset.refresh * 1000);
}

document.documentElement.classList.add("scripted");
localTimes(document);
nameZone();
openBoxes();
addEventListener("resize", openBoxes);
foldMenu();
submitTheme();
keepLive();
