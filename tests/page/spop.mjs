// HAProxy's end of a connection to an agent: just enough of SPOP 2.0 to ask and to read `blocked`.
import net from 'node:net';

function varint(n) {
  if (n < 240) return [n];
  const out = [(n & 0xff) | 240];
  n = Math.floor((n - 240) / 16);
  while (n >= 128) { out.push((n & 0xff) | 128); n = Math.floor((n - 128) / 128); }
  out.push(n);
  return out;
}
function text(value) {
  const bytes = Buffer.from(value);
  return Buffer.concat([Buffer.from(varint(bytes.length)), bytes]);
}
function typed(value) {
  if (net.isIPv4(value)) return Buffer.from([6, ...value.split('.').map(Number)]);
  return Buffer.concat([Buffer.from([8]), text(value)]);
}
function frame(type, stream, payload) {
  const head = Buffer.from([type, 0, 0, 0, 1, ...varint(stream), ...varint(stream ? 1 : 0)]);
  const length = Buffer.alloc(4);
  length.writeUInt32BE(head.length + payload.length);
  return Buffer.concat([length, head, payload]);
}
function kv(name, type, value) {
  return Buffer.concat([text(name), Buffer.from([type]), value]);
}
function readVarint(bytes, at) {
  let n = bytes[at++];
  if (n < 240) return [n, at];
  let shift = 4, byte;
  do { byte = bytes[at++]; n += byte * 2 ** shift; shift += 7; } while (byte >= 128);
  return [n, at];
}

export class Spop {
  // Counts what was answered: [allowed, blocked].
  constructor() { this.counts = [0, 0]; this.waiting = []; this.received = Buffer.alloc(0); }
  static async connect(address) {
    const spop = new Spop(), [host, port] = address.split(':');
    spop.socket = net.connect({ host, port: Number(port), noDelay: true });
    spop.socket.on('error', () => {});
    spop.socket.on('close', () => spop.waiting.splice(0).forEach((done) => done(null)));
    spop.socket.on('data', (data) => spop.read(data));
    const hello = frame(1, 0, Buffer.concat([
      kv('supported-versions', 8, text('2.0')), kv('max-frame-size', 3, Buffer.from(varint(16380))),
      kv('capabilities', 8, text('pipelining')),
    ]));
    const done = new Promise((resolve) => spop.waiting.push(resolve));
    spop.socket.write(hello);
    await done;
    if (spop.socket.destroyed) throw new Error('the agent is gone');
    spop.stream = 1;
    return spop;
  }
  // Asks once for each of these args; resolves when all are answered.
  ask(message, all) {
    if (this.socket.destroyed) throw new Error('the agent is gone');
    const frames = all.map((args) => {
      const entries = Object.entries(args).map(([name, value]) => Buffer.concat([text(name), typed(value)]));
      return frame(3, this.stream++, Buffer.concat([text(message), Buffer.from([entries.length]), ...entries]));
    });
    const done = all.map(() => new Promise((resolve) => this.waiting.push(resolve)));
    this.socket.write(Buffer.concat(frames));
    return Promise.all(done);
  }
  read(data) {
    this.received = Buffer.concat([this.received, data]);
    while (this.received.length >= 4) {
      const length = this.received.readUInt32BE(0);
      if (this.received.length < 4 + length) return;
      const bytes = this.received.subarray(4, 4 + length);
      this.received = this.received.subarray(4 + length);
      this.waiting.shift()?.(bytes[0] === 103 ? this.ack(bytes) : null);
    }
  }
  ack(bytes) {
    let [, at] = readVarint(bytes, 5);
    [, at] = readVarint(bytes, at);
    let blocked = null;
    // set-var: type 1, 3 args, scope, name, a typed value; only `blocked`, a bool, comes first.
    if (at < bytes.length) {
      let length;
      [length, at] = readVarint(bytes, at + 3);
      blocked = (bytes[at + length] & 0x10) !== 0;
    }
    if (blocked !== null) this.counts[Number(blocked)]++;
    return blocked;
  }
  close() { this.socket.destroy(); }
}
