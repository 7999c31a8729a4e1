// Light or dark: as the system says, or as chosen here. Loaded before anything is painted.
{
  const read = () => {
    try {
      return localStorage.getItem("theme") ?? "auto";
    } catch {
      return "auto";
    }
  };
  const apply = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  };
  window.theme = {
    current: read,
    // auto, light, dark, and round again.
    next() {
      const theme = { auto: "light", light: "dark" }[read()] ?? "auto";
      try {
        localStorage.setItem("theme", theme);
      } catch {
        // Kept for this page only.
      }
      apply(theme);
      return theme;
    },
  };
  apply(read());
}
