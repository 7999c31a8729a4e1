/** One instance of a service. */
export interface Instance {
  service: string;
  id: string;
  address: string;
  port: number;
  namespace?: string;
  healthy?: boolean;
  weight?: number;
  zone?: string;
  metadata?: Record<string, string>;
}

/**
 * The instances of a service, by id. `stale`: the registry or the sidecar is unavailable, and these are the last that are
 * known.
 */
export interface Instances {
  instances: Instance[];
  stale: boolean;
}

/**
 * The sidecar does not take an intent, or opens no session: the same would be refused again. `code` is gRPC's number.
 */
export class Refused extends Error {
  code: number;
}

export interface Options {
  /** The sidecar; FAILBACK_TARGET, else unix:/run/failback/agent.sock. */
  target?: string;
  /** Of this process, as operators see it. */
  name?: string;
  /** Seconds. */
  ttl?: number;
}

export interface Waiting {
  /**
   * Ends the wait with the signal's reason, as AbortSignal.timeout(1000) does; the intent stays in force. If the sidecar
   * refuses it later, that is a warning.
   */
  signal?: AbortSignal;
}

/**
 * A session at the sidecar. When the process ends, what it has registered is unregistered. A sidecar that is unavailable, and
 * what it refuses when it is back, are reported by process.emitWarning().
 */
export class Agent {
  /** Does not wait for the sidecar. Throws a TypeError or a RangeError that names a wrong option. */
  constructor(options?: Options);
  /**
   * Resolved when the sidecar has accepted it, which carries it from then on; waits for a sidecar that is unavailable. Once
   * more with the same id changes what is registered. Of several calls for one id, unregister() included, the newest is in
   * force; earlier ones that have not been sent have its outcome. Rejects with Refused, and then what was accepted before
   * stays; with an Error when the agent is closed. Registers nothing for a wrong argument, and rejects with a TypeError for
   * its type, with a RangeError for its value.
   */
  register(instance: Omit<Instance, 'healthy'>, options?: Waiting): Promise<void>;
  /** Resolved when the sidecar has accepted it. One that is not registered is fine. */
  unregister(instance: {service: string; id: string; namespace?: string}, options?: Waiting): Promise<void>;
  /**
   * The instances of a service, each time that they change, and once, `stale`, for each outage. Ends with `break`, with
   * the signal, or with the agent. Throws at once for a wrong argument, and when the agent is closed.
   */
  follow(service: string, options?: {namespace?: string; signal?: AbortSignal}): AsyncGenerator<Instances, void, void>;
  /** Ends the session, and every follow(). Waits up to a second for a sidecar that does not answer. */
  close(): Promise<void>;
}
