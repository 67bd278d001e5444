// Agents and traffic for the tests of the page.
import { spawn, spawnSync } from 'node:child_process';
import { Spop } from './spop.mjs';

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
export async function until(what, holds, patience = 45000) {
  const began = Date.now();
  for (;;) {
    const found = await holds();
    if (found) return found;
    if (Date.now() - began > patience) throw new Error(`waited in vain until ${what}`);
    await sleep(50);
  }
}

const running = new Set();
export function stopAll() {
  for (const agent of running) agent.child.kill('SIGKILL');
}

export class Agent {
  constructor(program, args) { Object.assign(this, { program, args, log: '' }); }
  static async start(program, args) {
    const agent = new Agent(program, args);
    await agent.begin();
    return agent;
  }
  async begin() {
    this.log = '';
    const child = this.child = spawn(this.program, this.args, { stdio: ['ignore', 'ignore', 'pipe'] });
    running.add(this);
    child.stderr.on('data', (data) => { this.log += data; });
    this.ended = new Promise((resolve) => child.on('exit', resolve)).then(() => running.delete(this));
    await until('the agent is ready', async () => {
      if (child.exitCode !== null) throw new Error(`the agent ended: ${this.log}`);
      this.admin = /admin on http:\/\/(\S+)\//.exec(this.log)?.[1];
      this.listen = /listening on (\S+)/.exec(this.log)?.[1];
      return this.admin && this.listen && await fetch(`http://${this.admin}/readyz`).then((a) => a.ok, () => false);
    });
    return this;
  }
  get url() { return `http://${this.admin}/`; }
  json(path) { return fetch(this.url + path).then((answer) => answer.json()); }
  // The sums of a counter by its labels.
  async metric(name, labels) {
    const lines = (await (await fetch(`${this.url}metrics`)).text()).split('\n');
    const ours = lines.filter((line) => line.startsWith(`${name}{`) && labels.every((label) => line.includes(label)));
    return ours.reduce((sum, line) => sum + Number(line.split(' ').pop()), 0);
  }
  async stop(signal = 'SIGTERM') {
    this.child.kill(signal);
    await this.ended;
  }
}
export function run(program, args) {
  const { status, stdout, stderr } = spawnSync(program, args, { encoding: 'utf8' });
  return { status, text: stdout + stderr };
}

// Asks agents again and again, and counts what they answer, by message.
export class Traffic {
  constructor(agents, plan) { Object.assign(this, { agents, plan, counts: {}, on: true, paused: false }); this.round = 0; this.done = this.loop(); }
  async loop() {
    const links = new Map();
    while (this.on) {
      if (this.paused) { this.idle = true; await sleep(20); continue; }
      this.idle = false;
      for (const agent of this.agents) {
        try {
          if (!links.has(agent) || links.get(agent).socket.destroyed) links.set(agent, await Spop.connect(agent.listen));
          for (const { message, args } of this.plan(this.round, agent)) {
            const answers = await links.get(agent).ask(message, args);
            const sums = this.counts[message] ??= { allowed: 0, blocked: 0 };
            for (const blocked of answers) if (blocked !== null) sums[blocked ? 'blocked' : 'allowed']++;
          }
        } catch { links.delete(agent); }
      }
      this.round++;
      await sleep(200);
    }
    for (const link of links.values()) link.close();
  }
  async pause() { this.paused = true; await until('the traffic pauses', () => this.idle); }
  go() { this.idle = false; this.paused = false; }
  async stop() { this.on = false; await this.done; }
}
