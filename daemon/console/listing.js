// A list of the API, all of its pages.
//
// The rows of the first pages are shown while the others are on their way. Asked again, a page that has
// not changed costs an empty answer; and where all pages carry one tag (that of the store's revision),
// an unchanged first page stands for all.

import { etagOf, get } from "./api.js";

// More rows than this do not help: the filter narrows them, at the server.
export const MAX_ROWS = 10_000;

export class Listing {
  // `path` with its query parameters; `field` holds the rows of a page.
  constructor(path, field, parameters = {}, pageSize = 1000) {
    const search = new URLSearchParams(
      Object.entries(parameters).flatMap(([name, values]) =>
        [values]
          .flat()
          .filter((value) => value !== undefined && value !== "")
          .map((value) => [name, value]),
      ),
    );
    search.set("page_size", pageSize);
    this.first = `${path}?${search}`;
    this.field = field;
    this.pages = [];
    this.rows = [];
    // The first page without its rows: totals, counts, staleness.
    this.head = null;
    this.complete = false;
  }

  // Whether `path` is one of this list's pages.
  owns(path) {
    return path.startsWith(this.first);
  }

  // Reads what has changed. `onProgress` is called when rows have come.
  async refresh(signal, onProgress) {
    let url = this.first;
    const pages = [];
    for (let rows = 0; url && rows < MAX_ROWS;) {
      const data = await get(url, signal);
      if (pages.length === 0 && data === this.pages[0]?.data && this.#oneTag()) return;
      pages.push({ url, data });
      rows += data[this.field].length;
      url = data.nextPageToken
        ? `${this.first}&page_token=${encodeURIComponent(data.nextPageToken)}`
        : null;
      // The first time there is nothing better to show than what has come so far.
      if (!this.complete) this.#take(pages, !url || rows >= MAX_ROWS, onProgress);
    }
    this.#take(pages, true, onProgress);
  }

  #oneTag() {
    const tag = etagOf(this.first);
    return this.complete && tag !== undefined && this.pages.every(({ url }) => etagOf(url) === tag);
  }

  #take(pages, complete, onProgress) {
    const same =
      pages.length === this.pages.length &&
      pages.every(({ data }, i) => data === this.pages[i].data);
    this.complete = complete;
    if (same) return;
    this.pages = [...pages];
    this.rows = pages.flatMap(({ data }) => data[this.field]);
    this.head = pages[0].data;
    onProgress();
  }
}
