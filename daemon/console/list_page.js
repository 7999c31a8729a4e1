// The frame of a view that lists: title, filter, reasons, count, and the grid itself.

import { h, morph } from "./dom.js";
import { Grid } from "./grid.js";
import { icon } from "./icons.js";
import { emptyState } from "./parts.js";
import { goWith } from "./router.js";
import { nextSort } from "./sorting.js";
import { summary } from "./summary.js";

// From the last letter typed until the list follows.
const TYPING_MS = 150;

export class ListPage {
  #view;
  #grid;
  #place;
  #typing = null;
  #now = 0;
  // The rows shown last, and what they were made from.
  #rows = [];
  #madeFrom = [];

  // `name` is the view's, for the styles. `route` says which list this is; another one has a page of its own.
  constructor(name, view, route) {
    this.#view = view;
    this.#place = ListPage.placeOf(route);
    this.#grid = new Grid({
      label: view.title(route),
      className: `grid-${name}`,
      columns: view.columns(
        () => this.#now,
        () => this.overview,
      ),
      keyOf: view.keyOf,
      open: view.open ?? (() => {}),
      onSort: (field) => goWith({ sort: nextSort(this.route.sort ?? "", field) }),
    });
  }

  static placeOf = ({ view, namespace = "", service = "" }) =>
    `${view} ${service ? `${namespace} ${service}` : ""}`;
  shows = (route) => ListPage.placeOf(route) === this.#place;

  get grid() {
    return this.#grid;
  }

  // The line that counts the rows, as it is shown and said.
  get text() {
    return this.listing ? this.#view.summary(this.listing, this.route, this.#rows.length) : "";
  }

  destroy() {
    clearTimeout(this.#typing);
    this.#grid.destroy();
  }

  // The rows that the filter leaves, in their order.
  get rows() {
    return this.#rows;
  }

  // Draws into `main`. `listing` is null while nothing has come yet.
  draw(main, { route, listing, overview, kind }, now) {
    Object.assign(this, { route, listing, overview });
    this.#now = now;
    this.#choose();
    const tools = listing ?? { rows: [], head: null };
    const nothing =
      kind &&
      (listing || (kind === "registry" && ["pending", "intents"].includes(route.view))) &&
      this.#rows.length === 0;
    morph(
      main,
      this.#heading(route),
      route.view === "services" ? summary({ overview, kind }) : null,
      h(
        "div",
        { class: "tools", "data-key": "tools" },
        this.#view.tools(route, tools, this.#rows.length),
      ),
      this.#view.above?.(route, tools) ?? null,
      h(
        "p",
        { class: "count", "data-key": "count", id: "count" },
        this.text || (nothing ? "" : "Loading…"),
      ),
      nothing ? emptyState(...this.#view.empty(route, { kind, rows: tools.rows })) : null,
      h("div", {
        "data-key": "grid",
        "data-own": "",
        class: "grid-holder",
        hidden: this.#rows.length === 0,
      }),
    );
    const holder = main.querySelector(".grid-holder");
    if (!holder.contains(this.#grid.element)) holder.replaceChildren(this.#grid.element);
    this.#fill(main.querySelector("#filter"), route.q ?? "");
    this.#grid.show(this.#rows, { sort: route.sort ?? "", selected: route.instance ?? route.row ?? null });
  }

  #heading(route) {
    return route.view === "instances"
      ? h(
          "div",
          { class: "heading", "data-key": "heading" },
          h("a", { href: "#/services", class: "back" }, icon("back"), "Services"),
          h(
            "h1",
            { tabindex: -1 },
            h("span", { class: "muted" }, `${route.namespace} / `),
            route.service,
          ),
        )
      : h(
          "div",
          { class: "heading", "data-key": "heading" },
          h("h1", { tabindex: -1 }, this.#view.title(route)),
        );
  }

  // Sorts and filters only when there is something new to sort and filter.
  #choose() {
    const from = [this.listing?.rows, JSON.stringify({ ...this.route, row: "", instance: "" })];
    if (from.every((part, i) => part === this.#madeFrom[i])) return;
    this.#madeFrom = from;
    this.#rows = this.listing ? this.#view.rows(this.listing, this.route) : [];
  }

  // The field is the person's while it is typed in.
  #fill(input, text) {
    if (input !== document.activeElement && input.value !== text) input.value = text;
    input.oninput = () => {
      clearTimeout(this.#typing);
      this.#typing = setTimeout(
        () => goWith({ q: input.value.trim() }, { replace: true }),
        TYPING_MS,
      );
    };
  }
}
