// Questions to the person, and the POSTs that follow from the answers.

import { ApiError, post } from "./api.js";
import { byId, h, morph } from "./dom.js";

// Kept for this tab only, and never part of an address.
const TOKEN = "failback token";

// Asks in a modal dialog. `fields` are [{name, label, type, hint, required, value}]. Gives the values by name,
// or null when the person thinks better of it.
export function ask({ title, text, fields = [], confirm, danger = false }) {
  const dialog = byId("dialog");
  const inputs = fields.map(({ name, label, hint, ...attributes }) => [
    h("label", { for: `field-${name}` }, label),
    h("input", {
      id: `field-${name}`,
      name,
      autocomplete: "off",
      "aria-describedby": hint ? `hint-${name}` : null,
      ...attributes,
    }),
    hint ? h("p", { class: "hint", id: `hint-${name}` }, hint) : null,
  ]);
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: "dialog-title" }, title),
    text ? h("p", {}, text) : null,
    inputs,
    h(
      "div",
      { class: "dialog-buttons" },
      h("button", { type: "button", class: "quiet", value: "cancel" }, "Keep as it is"),
      h("button", { type: "submit", class: danger ? "danger" : "primary" }, confirm),
    ),
  );
  dialog.replaceChildren(form);
  return new Promise((resolve) => {
    form.querySelector("[value=cancel]").addEventListener("click", () => dialog.close());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const values = Object.fromEntries(new FormData(form));
      resolve(values);
      dialog.close();
    });
    dialog.addEventListener("close", () => resolve(null), { once: true });
    dialog.showModal();
  });
}

// POSTs, and asks for the token when the server wants one. Null when the person does not give it.
export async function act(path, body) {
  for (;;) {
    const token = sessionStorage.getItem(TOKEN) ?? "";
    try {
      return await post(path, body, token);
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 401) throw error;
      sessionStorage.removeItem(TOKEN);
      const answer = await ask({
        title: "Administrator's token",
        text: token
          ? `It was not accepted: ${error.message}`
          : "Changes need the token that the daemon reads from admin.token_file.",
        fields: [
          {
            name: "token",
            label: "Token",
            type: "password",
            required: true,
            hint: "Kept until this tab is closed.",
          },
        ],
        confirm: "Go on",
      });
      if (!answer) return null;
      sessionStorage.setItem(TOKEN, answer.token.trim());
    }
  }
}

// The keys, for who asks with "?".
export function showHelp() {
  const dialog = byId("dialog");
  const keys = [
    ["/", "filter"],
    ["j k ↓ ↑", "next and previous row"],
    ["Home End PageUp PageDown", "far rows"],
    ["Enter", "open the row"],
    ["Esc", "close what is open, clear the filter"],
    ["1 2 3 4", "the views, in their order"],
    ["?", "this help"],
  ];
  morph(
    dialog,
    h(
      "form",
      { method: "dialog" },
      h("h2", { id: "dialog-title" }, "Keyboard"),
      h(
        "dl",
        { class: "keys" },
        keys.map(([key, what]) =>
          h(
            "div",
            {},
            h(
              "dt",
              {},
              key.split(" ").map((one) => h("kbd", {}, one)),
            ),
            h("dd", {}, what),
          ),
        ),
      ),
      h(
        "div",
        { class: "dialog-buttons" },
        h("button", { type: "submit", class: "primary" }, "Close"),
      ),
    ),
  );
  dialog.showModal();
}
