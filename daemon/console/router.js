// Where one is, as a link that can be sent to a colleague. Everything is in the fragment, which never
// reaches the server:
//
//   #/services                                   #/services?q=pay
//   #/services/default/orders?q=zone%3Da&status=unhealthy&sort=-since
//   #/services/default/orders?instance=orders-1  the same, with the instance's details open
//   #/pending?q=orders                           #/agents?state=trouble
//   #/intents?state=parked                       #/sessions
//   #/status

const VIEWS = new Set(["services", "pending", "intents", "agents", "sessions", "status"]);

// {view, namespace, service, q, …}; what is not understood leads to the services.
function parseRoute(hash) {
  const [path, parameters = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decode);
  const route = { view: VIEWS.has(parts[0]) ? parts[0] : "services" };
  if (route.view === "services" && parts.length >= 3) {
    Object.assign(route, { view: "instances", namespace: parts[1], service: parts[2] });
  }
  for (const [name, value] of new URLSearchParams(parameters)) {
    if (value !== "" && !(name in route)) route[name] = value;
  }
  return route;
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function formatRoute({ view, namespace, service, ...parameters }) {
  const path =
    view === "instances"
      ? `services/${encodeURIComponent(namespace)}/${encodeURIComponent(service)}`
      : view;
  const search = new URLSearchParams(
    Object.entries(parameters).filter(([, value]) => value !== undefined && value !== ""),
  );
  return `#/${path}${search.size ? `?${search}` : ""}`;
}

// To an instance, by its key.
export const instanceRoute = ({ namespace, service, instanceId }) =>
  formatRoute({
    view: "instances",
    namespace: namespace || "default",
    service,
    instance: instanceId,
  });

export const currentRoute = () => parseRoute(location.hash);

// Goes there. `replace` leaves no entry in the history, for what is typed letter by letter.
export function go(route, { replace = false } = {}) {
  const hash = formatRoute(route);
  if (hash === location.hash) return;
  if (replace) {
    history.replaceState(null, "", hash);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = hash;
  }
}

// The same place with some parameters changed.
export const goWith = (changes, options) => go({ ...currentRoute(), ...changes }, options);
