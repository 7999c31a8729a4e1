// Elements without a framework: `h` builds a tree, `morph` makes what is on the page equal to it.
//
// Nothing is ever parsed as HTML, so no value of the API can become markup. Views are pure: they build
// the whole tree from the state each time, and `morph` touches only what differs, so that focus,
// selection and scroll positions stay. Listeners would be lost that way; `onAction` delegates
// instead, by the `data-action` of what was clicked.

const SVG = "http://www.w3.org/2000/svg";

// h("td", {class: "name", "aria-label": "x", hidden: false}, "text", node, null, [more])
export function h(tag, attributes = {}, ...children) {
  const element =
    tag === "svg" || tag === "path"
      ? document.createElementNS(SVG, tag)
      : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") {
      for (const [property, text] of Object.entries(value))
        element.style.setProperty(property, text);
    } else {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(
    ...children
      .flat(Infinity)
      .filter((child) => child !== null && child !== false)
      .map((child) => (child instanceof Node ? child : String(child))),
  );
  return element;
}

// Makes the children of `parent` equal to `nodes`. Children with a `data-key` keep their element
// wherever they move to.
export function morph(parent, ...nodes) {
  const wanted = nodes
    .flat(Infinity)
    .filter((node) => node !== null && node !== false)
    .map((node) => (node instanceof Node ? node : document.createTextNode(String(node))));
  const keyed = new Map();
  for (const child of parent.children) {
    if (child.dataset.key !== undefined) keyed.set(child.dataset.key, child);
  }
  let at = parent.firstChild;
  for (const node of wanted) {
    const key = node.dataset?.key;
    let old = key === undefined ? at : (keyed.get(key) ?? null);
    if (old && (!sameKind(old, node) || old.dataset?.key !== key)) old = null;
    if (old) {
      if (old !== at) parent.insertBefore(old, at);
      else at = at.nextSibling;
      update(old, node);
    } else {
      parent.insertBefore(node, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function sameKind(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName && a.type === b.type;
}

function update(old, node) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== node.data) old.data = node.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    // Whether a <details> is open is up to its reader.
    if (!node.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of node.attributes) {
    if (old.getAttribute(name) === value) continue;
    if (name === "style") old.style.cssText = value;
    else old.setAttribute(name, value);
  }
  // A list of rows is filled by its own means.
  if (!node.hasAttribute("data-own")) morph(old, ...node.childNodes);
}

// Calls `actions[name](element, event)` when something with `data-action="name"` is clicked within `root`.
export function onAction(root, actions) {
  root.addEventListener("click", (event) => {
    const element = event.target.closest("[data-action]");
    if (!element || !root.contains(element) || element.disabled) return;
    const action = actions[element.dataset.action];
    if (action) action(element, event);
  });
}

export const byId = (id) => document.getElementById(id);
