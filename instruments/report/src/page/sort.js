// Turns the heads of the fleet's table into buttons that sort it by their column. Without this script it stays sorted,
// the worst hosts first.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const key = (row, column) => row.cells[column].dataset.sort ?? row.cells[column].textContent;
  const compare = (a, b, turned) => {
    // Missing values come last in both directions.
    if (a === "" || b === "") return (a === "") - (b === "");
    return turned * (a - b || a.localeCompare(b, "en", { numeric: true }));
  };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const turned = head.ariaSort === "ascending" ? -1 : 1;
      for (const other of head.parentNode.cells) other.ariaSort = null;
      head.ariaSort = turned > 0 ? "ascending" : "descending";
      const rows = [...body.rows];
      rows.sort((a, b) => compare(key(a, column), key(b, column), turned));
      body.append(...rows);
    });
  });
}
