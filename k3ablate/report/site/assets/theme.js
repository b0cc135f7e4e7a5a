"use strict";
// Light or dark: as the system says, until the reader says otherwise; that is remembered where the browser allows it.
(() => {
  const KEY = "k3ablate-theme";
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  root.classList.replace("no-js", "js");

  const stored = () => {
    try {
      return window.localStorage.getItem(KEY);
    } catch {
      return null; // storage may be refused, for files above all
    }
  };
  const store = (theme) => {
    try {
      window.localStorage.setItem(KEY, theme);
    } catch {
      // then it holds for this page
    }
  };

  let chosen = stored();
  const apply = () => {
    const isDark = chosen ? chosen === "dark" : system.matches;
    root.dataset.theme = isDark ? "dark" : "light";
    const button = document.getElementById("theme");
    if (button) button.setAttribute("aria-pressed", String(isDark));
    document.dispatchEvent(new CustomEvent("theme"));
  };
  apply();
  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      chosen = root.dataset.theme === "dark" ? "light" : "dark";
      store(chosen);
      apply();
    });
    apply();
  });
})();
