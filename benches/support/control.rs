//! The least that an agent can do with the same codec and the same table: read, decode, hash,
//! prefetch, charge, answer, write. It has one policy and one kind of key, and no counters, log,
//! deadlines, limits or fairness. The further cost of our agent is the price of these.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use gcra_table::{Nanos, Quota, Slots, Table};
use spop_codec::{AckWriter, Frame, Scope, Value, VarName, decode, encode_agent_hello};

/// As many as our agent decides about with one reading of the clock.
const BATCH: usize = 32;
const BUFFER: usize = 64 * 1024;
const MAX_FRAME_SIZE: u32 = 16_380;
const MAX_ANSWER: usize = 128;
const BLOCKED: VarName<'_> = VarName::from_static("blocked");

/// Answers on a thread for each connection, for ever.
pub(crate) fn run() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    println!("listening on {}", listener.local_addr().unwrap());
    // As many as the agent's default.
    let table = Arc::new(Table::in_memory(Slots::new(1 << 20).unwrap()).unwrap());
    for stream in listener.incoming() {
        let table = Arc::clone(&table);
        thread::spawn(move || answer(stream.unwrap(), &table));
    }
}

fn answer(mut stream: TcpStream, table: &Table) {
    stream.set_nodelay(true).unwrap();
    let quota = Quota::new(Nanos::from_millis(10), 20).unwrap();
    let (mut input, mut filled) = (vec![0; BUFFER], 0);
    let (mut output, mut batch) = (Vec::with_capacity(2 * BUFFER), Vec::with_capacity(BATCH));
    let mut out = [0; MAX_ANSWER];
    loop {
        match stream.read(&mut input[filled..]) {
            Ok(0) | Err(_) => return,
            Ok(read) => filled += read,
        }
        let mut used = 0;
        loop {
            batch.clear();
            while batch.len() < BATCH
                && let Some((frame, length)) =
                    decode(&input[used..filled], MAX_FRAME_SIZE).unwrap()
            {
                used += length;
                match frame {
                    Frame::Notify(notify) => {
                        let message = notify.messages().next().unwrap();
                        let Some(Value::Ipv4(ip)) = message.arg(b"ip") else { panic!("no ip") };
                        let key = table.hash(&ip.octets());
                        table.prefetch(key, quota);
                        batch.push((notify.id, key));
                    }
                    _ => {
                        let length =
                            encode_agent_hello(&mut out, MAX_FRAME_SIZE, "pipelining").unwrap();
                        output.extend_from_slice(&out[..length]);
                    }
                }
            }
            let mut now = table.reading();
            for (id, key) in &batch {
                let is_blocked = !table.charge(*key, quota, 1, &mut now).is_allowed();
                let mut ack = AckWriter::new(&mut out, *id, MAX_FRAME_SIZE).unwrap();
                ack.set_var(Scope::Transaction, BLOCKED, is_blocked.into()).unwrap();
                let length = ack.finish();
                output.extend_from_slice(&out[..length]);
            }
            if batch.len() < BATCH {
                break;
            }
        }
        input.copy_within(used..filled, 0);
        filled -= used;
        if stream.write_all(&output).is_err() {
            return;
        }
        output.clear();
    }
}
