// The admin API over HTTP (docs/admin.md): conditional GETs, and POSTs that show a token.

// What the server answered, or that it did not. `code` is the server's, or UNREACHABLE.
export class ApiError extends Error {
  constructor(status, { code = `HTTP ${status}`, message, reason = "", details = {} }) {
    super(message);
    Object.assign(this, { status, code, reason, details });
  }
}

const TIMEOUT_MS = 10_000;
// Path to {etag, data}: only what the last refresh asked for is kept, see `forget`.
const answers = new Map();

// The JSON at `path`; the very same object as before while it has not changed.
export async function get(path, signal) {
  const known = answers.get(path);
  const response = await request(path, {
    headers: { accept: "application/json", ...(known ? { "if-none-match": known.etag } : {}) },
    signal,
  });
  if (response.status === 304) return known.data;
  const data = await jsonOf(response);
  const etag = response.headers.get("etag");
  if (etag) answers.set(path, { etag, data });
  else answers.delete(path);
  return data;
}

export const etagOf = (path) => answers.get(path)?.etag;

// Drops the answers to paths that no view asks for any more.
export function forget(isWanted) {
  for (const path of answers.keys()) if (!isWanted(path)) answers.delete(path);
}

export async function post(path, body, token) {
  const response = await request(path, {
    method: "POST",
    headers: {
      accept: "application/json",
      "content-type": "application/json",
      authorization: `Bearer ${token}`,
    },
    body: JSON.stringify(body),
  });
  return jsonOf(response);
}

async function request(path, init) {
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const signal = init.signal ? AbortSignal.any([init.signal, timeout]) : timeout;
  try {
    return await fetch(path, { ...init, signal, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiError(0, {
      code: "UNREACHABLE",
      message: timeout.aborted
        ? `no answer within ${TIMEOUT_MS / 1000} s`
        : "the connection was refused or broke",
    });
  }
}

async function jsonOf(response) {
  let body;
  try {
    body = await response.json();
  } catch {
    body = null;
  }
  if (response.ok && body !== null) return body;
  throw new ApiError(
    response.status,
    body ?? { message: `HTTP ${response.status} without an explanation` },
  );
}

export const instancePath = ({ namespace, service, instanceId }) =>
  `/services/${[namespace || "default", service, instanceId].map(encodeURIComponent).join("/")}`;
