// Asks again and again, cheaply.
//
// Each second while the page is seen; more seldom when an answer takes long; hidden, less and less often; and
// after a failure with a growing delay, which is shown.

const INTERVAL_MS = 1000;
// After an answer that took long, so many times that; but no longer than this.
const REST = 4;
const MAX_REST_MS = 5000;
const MAX_HIDDEN_MS = 60_000;
const MAX_RETRY_MS = 10_000;

export class Poller {
  #refresh;
  #onOutcome;
  #timer = null;
  #running = null;
  #delay = INTERVAL_MS;
  #failing = false;

  // `refresh(signal)` gets everything; `onOutcome(error, nextTry)` is called at each end: null, or why it
  // failed and when (in milliseconds since 1970) it is tried again.
  constructor(refresh, onOutcome) {
    this.#refresh = refresh;
    this.#onOutcome = onOutcome;
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.now();
    });
    addEventListener("online", () => this.now());
  }

  // Asks at once, in place of what is under way: something else is wanted.
  async now() {
    clearTimeout(this.#timer);
    this.#running?.abort();
    const running = (this.#running = new AbortController());
    const begun = performance.now();
    let error = null;
    try {
      await this.#refresh(running.signal);
    } catch (failure) {
      error = failure;
    }
    if (running !== this.#running) return;
    this.#running = null;
    this.#delay = this.#next(error, performance.now() - begun);
    this.#timer = setTimeout(() => this.now(), this.#delay);
    this.#onOutcome(error, Date.now() + this.#delay);
  }

  #next(error, took) {
    const failedBefore = this.#failing;
    this.#failing = error !== null;
    if (error) return failedBefore ? Math.min(MAX_RETRY_MS, this.#delay * 2) : INTERVAL_MS;
    if (document.hidden) return Math.min(MAX_HIDDEN_MS, this.#delay * 2);
    return Math.max(INTERVAL_MS, Math.min(MAX_REST_MS, took * REST));
  }
}
