// The real daemons and failbackctl, on free ports of loopback.

import { execFile, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";

const PATIENCE_MS = 60_000;
export const TOKEN = "a-token-of-the-test";

// A process whose output is kept; its ready line tells where it serves.
export class Daemon {
  static async start(program, ...args) {
    const daemon = new Daemon();
    daemon.process = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"] });
    let told = "";
    const line = new Promise((resolve, reject) => {
      const patience = setTimeout(
        () => reject(new Error(`${program} did not begin to serve:\n${told}`)),
        PATIENCE_MS,
      );
      daemon.process.stderr.on("data", (text) => (told += text));
      daemon.process.stdout.on("data", (text) => {
        told += text;
        const found = told.match(/listening on (\S+), admin (http:\S+),/);
        if (!found) return;
        clearTimeout(patience);
        resolve(found);
      });
    });
    const [, address, admin] = await line;
    return Object.assign(daemon, { address, url: `${admin}/` });
  }

  // SIGKILL, and until it is gone.
  async kill() {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    const gone = once(this.process, "exit");
    this.process.kill("SIGKILL");
    await gone;
  }
}

// One registry and one agent of it, with what has to be cleaned up after them.
export class Fleet {
  constructor() {
    this.folder = mkdtempSync(join(tmpdir(), "fleet-"));
    this.others = [];
    this.tokenFile = join(this.folder, "token");
    writeFileSync(this.tokenFile, `${TOKEN}\n`, { mode: 0o600 });
  }

  // On a Unix socket, which it gets again after a kill.
  async startRegistry(...options) {
    this.registryAddress = `unix:${join(this.folder, "registry.sock")}`;
    this.registry = await Daemon.start(
      "registry/failback-registry",
      "--listen",
      this.registryAddress,
      "--store",
      `sqlite://${join(this.folder, "registry.db")}`,
      "--admin",
      "127.0.0.1:0",
      "--admin-token-file",
      this.tokenFile,
      ...options,
    );
  }

  // Flags of a registry that knows the fleet's token, or another, by the name `fleet`, and goes by these rules.
  policyFlags(rules, token = TOKEN) {
    const write = (name, content) => {
      const file = join(this.folder, name);
      writeFileSync(file, JSON.stringify(content), { mode: 0o600 }); // which is YAML
      return file;
    };
    const sha256 = createHash("sha256").update(token).digest("hex");
    return [
      "--known-tokens-file",
      write("tokens.yaml", { tokens: [{ name: "fleet", sha256 }] }),
      "--policy-file",
      write("policy.yaml", { rules }),
    ];
  }

  // With `services`, as in a configuration file, of its own.
  async startAgent(services, ...options) {
    const config = join(this.folder, "agent.yaml");
    writeFileSync(config, JSON.stringify({ services })); // which is YAML
    this.agent = await Daemon.start(
      "agent/failback-agent",
      "--config",
      config,
      "--registry",
      `main=${this.registryAddress}`,
      "--listen",
      `unix:${join(this.folder, "agent.sock")}`,
      "--admin",
      "127.0.0.1:0",
      "--admin-token-file",
      this.tokenFile,
      ...options,
    );
  }

  // One more agent of the registry, called `name`, which registers `services`.
  async addAgent(name, services, ...options) {
    const config = join(this.folder, `${name}.yaml`);
    writeFileSync(config, JSON.stringify({ services }));
    const agent = await Daemon.start(
      "agent/failback-agent",
      "--config",
      config,
      "--registry",
      `main=${this.registryAddress}`,
      "--listen",
      `unix:${join(this.folder, `${name}.sock`)}`,
      "--client-name",
      name,
      "--admin",
      "127.0.0.1:0",
      "--admin-token-file",
      this.tokenFile,
      ...options,
    );
    this.others.push(agent);
    return agent;
  }

  // failbackctl at one of the two; its output.
  async ctl(target, ...args) {
    const { stdout } = await promisify(execFile)(
      "agent/failbackctl",
      ["--target", target.address, "--timeout", "30s", ...args],
      { timeout: PATIENCE_MS },
    );
    return stdout;
  }

  // A subscriber to a service at one of the two.
  watch(target, service) {
    this.watcher = new Watcher(target.address, service);
    return this.watcher;
  }

  async stop() {
    this.watcher?.stop();
    await this.agent?.kill();
    for (const agent of this.others) await agent.kill();
    await this.registry?.kill();
    rmSync(this.folder, { recursive: true, force: true });
  }
}

// `failbackctl subscribe`, and what its messages make of the service.
class Watcher {
  #instances = new Map();
  #process;
  #changed = () => {};

  constructor(address, service) {
    const args = ["--target", address, "-o", "json", "subscribe", service];
    this.#process = spawn("agent/failbackctl", args, { stdio: ["ignore", "pipe", "inherit"] });
    createInterface({ input: this.#process.stdout }).on("line", (line) =>
      this.#take(JSON.parse(line)),
    );
  }

  // The instances by id, once `condition` holds of them.
  async until(condition) {
    const deadline = AbortSignal.timeout(PATIENCE_MS);
    while (!condition(this.#instances)) {
      await new Promise((resolve, reject) => {
        this.#changed = resolve;
        deadline.onabort = () =>
          reject(new Error(`the subscriber saw ${JSON.stringify([...this.#instances])}`));
      });
    }
    return new Map(this.#instances);
  }

  stop() {
    this.#process.kill();
  }

  #take({ snapshot, delta }) {
    if (snapshot) this.#instances.clear();
    for (const instance of snapshot?.instances ?? delta?.upserts ?? [])
      this.#instances.set(instance.key.instanceId, instance);
    for (const { instanceId } of delta?.removals ?? []) this.#instances.delete(instanceId);
    this.#changed();
  }
}
