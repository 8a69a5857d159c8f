// Runs before the page is drawn, so that it does not flash in other colours.
try {
  const { theme } = JSON.parse(localStorage.getItem("moeflux-settings") ?? "{}");
  document.documentElement.dataset.theme = theme || "system";
} catch {
  document.documentElement.dataset.theme = "system";
}
