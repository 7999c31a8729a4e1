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

/** The instances of a service, by id. `stale`: the registry is away, and these are the last that are known. */
export interface Instances {
  instances: Instance[];
  stale: boolean;
}

/** The sidecar does not take an intent: the same one would be refused again. `code` is gRPC's number. */
export class Refused extends Error {
  code: number;
}

export interface Options {
  /** The sidecar; FAILBACK_TARGET, else unix:/run/failback/agent.sock. */
  target?: string;
  name?: string;
  /** Seconds. */
  ttl?: number;
}

/** A session at the sidecar. When the process ends, what it has registered is unregistered. */
export class Agent {
  constructor(options?: Options);
  /** Resolved when the sidecar has accepted it; waits for a sidecar that is away. Once more changes it. */
  register(instance: Omit<Instance, 'healthy'>): Promise<void>;
  unregister(instance: {service: string; id: string; namespace?: string}): Promise<void>;
  /** The instances of a service, each time that they change. */
  follow(service: string, options?: {namespace?: string}): AsyncGenerator<Instances, void, void>;
  /** Ends the session, and every follow(). */
  close(): Promise<void>;
}
