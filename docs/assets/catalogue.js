// Filter and sort the table of methods.
document.querySelectorAll(".catalogue-filter").forEach((form) => {
  const table = document.querySelector("table.catalogue");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const number = (row, name) => Number(row.dataset[name]);
  const tests = {
    stateless: (row) => number(row, "kept") === 0,
    bytes: (row) => number(row, "bytes") <= 1,
    gradients: (row) => number(row, "gradients") <= 1,
    flops: (row) => number(row, "flops") <= 1,
  };
  const show = () => {
    const text = form.text.value.toLowerCase();
    const year = Number(form.year.value) || 0;
    const asked = Object.keys(tests).filter((name) => form[name].checked);
    rows.forEach((row) => {
      row.hidden = !(
        row.textContent.toLowerCase().includes(text) &&
        number(row, "year") >= year &&
        asked.every((name) => tests[name](row))
      );
    });
    form.querySelector("output").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    head.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      [...head.parentNode.cells].forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column].textContent.replace("nothing", "0");
      const order = (a, b) => value(a).localeCompare(value(b), "en", { numeric: true });
      body.append(...rows.sort((a, b) => (down ? order(b, a) : order(a, b))));
    });
  });
  show();
});
