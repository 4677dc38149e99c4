// Load MathJax, which is part of the site, on pages that have equations.
if (document.querySelector(".arithmatex")) {
  window.MathJax = {
    tex: {
      inlineMath: [["\\(", "\\)"]],
      displayMath: [["\\[", "\\]"]],
      packages: { "[-]": ["noundefined", "noerrors"] }, // a mistake is shown as one, and tests see it
    },
    options: { enableMenu: false, ignoreHtmlClass: ".*", processHtmlClass: "arithmatex" },
  };
  const script = document.createElement("script");
  script.src = new URL("mathjax.js", document.currentScript.src);
  document.head.append(script);
}
