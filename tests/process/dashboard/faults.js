// What is wrong with the page as it is shown: text that is hard to read, controls without a name, content that is cut off.
(() => {
  const faults = [];
  const visible = (node) => node.checkVisibility() && !node.closest(".hidden, [aria-hidden=true], svg") && getComputedStyle(node).clipPath === "none";
  const channels = (color) => (color.match(/[\d.]+/g) ?? []).map(Number);
  const luminance = (color) => {
    const linear = channels(color).slice(0, 3).map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const background = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      const alpha = channels(color)[3] ?? 1;
      if (alpha === 1) return color;
      if (alpha > 0) faults.push(`translucent background: ${node.outerHTML.slice(0, 80)}`);
    }
    return "rgb(255 255 255)";
  };
  for (const node of document.body.querySelectorAll("*")) {
    if (!visible(node)) continue;
    const text = [...node.childNodes].filter((child) => child.nodeType === Node.TEXT_NODE).map((child) => child.data.trim()).join("");
    if (text) {
      const [a, b] = [luminance(getComputedStyle(node).color), luminance(background(node))].sort((a, b) => b - a);
      const contrast = (a + 0.05) / (b + 0.05);
      if (contrast < 4.5) faults.push(`contrast ${contrast.toFixed(2)}: ${text.slice(0, 40)}`);
    }
    if (node.matches("input, select, textarea") && node.labels.length === 0) faults.push(`no label: #${node.id}`);
    if (node.matches("button, a") && !(node.innerText.trim() || node.getAttribute("aria-label"))) faults.push(`no name: ${node.outerHTML.slice(0, 80)}`);
    const { right, left, width } = node.getBoundingClientRect();
    if (width > 0 && (right > innerWidth + 0.5 || left < -0.5)) faults.push(`cut off: ${node.outerHTML.slice(0, 80)}`);
  }
  if (document.documentElement.scrollWidth > innerWidth) faults.push(`scrolls sideways: ${document.documentElement.scrollWidth} of ${innerWidth}`);
  const ids = [...document.querySelectorAll("[id]")].map(({ id }) => id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) faults.push(`twice: #${id}`);
  return faults;
})()
