//! Which of an address's SO_REUSEPORT sockets a QUIC packet goes to: the one that its connection id names (`quic::ids`), by a
//! program of the kernel's. It tells the connections of this process from those of the binary before it (USR2), which go on
//! there; what is new comes here.

use crate::master::sys;
use socket2::Socket;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU16, Ordering};

/// The environment variable that counts binary upgrades.
pub const GENERATION_VARIABLE: &str = "IRONWEIR_GENERATION";
/// Of a socket's number in a connection id: the generation, and the place.
const GENERATION_BITS: u16 = 0xf000;
const PLACE_BITS: u16 = 0x0fff;
/// Bytes of our connection ids.
const ID: u32 = super::quic::ID_LEN as u32;

static GENERATION: AtomicU16 = AtomicU16::new(0);

/// Notes the generation of this binary, as the one before told it. For the master, before it has a worker.
pub fn set_generation(told: Option<&str>) {
    let number = told.and_then(|text| text.parse::<u16>().ok()).unwrap_or(0);
    GENERATION.store(number << GENERATION_BITS.trailing_zeros(), Ordering::Relaxed);
}

/// What to tell the next binary.
pub fn next_generation() -> String {
    let shift = GENERATION_BITS.trailing_zeros();
    (((generation() >> shift) + 1) & (GENERATION_BITS >> shift)).to_string()
}

pub(super) fn generation() -> u16 {
    GENERATION.load(Ordering::Relaxed)
}

/// The number of a socket in connection ids, of its place among those of its address.
pub fn number(place: usize) -> u16 {
    generation() | (place as u16 & PLACE_BITS)
}

/// The sockets of this process in a group.
#[derive(Clone, Copy)]
pub(super) struct Own {
    /// In the upper bits of their numbers.
    pub(super) generation: u16,
    /// How many there are.
    pub(super) count: usize,
    /// Sockets of the binary before, which stand before them.
    pub(super) ahead: usize,
}

/// Takes the program away; there may be none.
pub(super) fn no_more(socket: &Socket) -> io::Result<()> {
    let _ = sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_DETACH_REUSEPORT_BPF, 0);
    Ok(())
}

/// Gives the group of a socket its program.
pub(super) fn steer(socket: &Socket, own: Own) -> io::Result<()> {
    sys::choose_socket_by(socket.as_fd(), &program(own))
}

fn program(own: Own) -> Vec<libc::sock_filter> {
    let step = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let jump = |condition: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_K | condition) as u16,
        jt,
        jf,
        k,
    };
    let byte = |at| step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, at);
    let number = |at| step(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, at);
    let place = step(libc::BPF_ALU | libc::BPF_K | libc::BPF_AND, PLACE_BITS.into());
    let add_ahead = step(libc::BPF_ALU | libc::BPF_K | libc::BPF_ADD, own.ahead as u32);
    let found = step(libc::BPF_RET | libc::BPF_A, 0);
    // A datagram that is too short for its step ends the program with 0, the first socket.
    let mut program = vec![
        byte(0),
        jump(libc::BPF_JSET, 0x80, 2, 0),
        // 2: a short header (RFC 9000 section 17.3): the id stands behind the first byte.
        number(1),
        step(libc::BPF_JMP | libc::BPF_JA, 3),
        // 4: a long header (section 17.2) says how long its id is.
        byte(5),
        jump(libc::BPF_JEQ, ID, 0, 13),
        number(6),
        // 7: whose number is it?
        step(libc::BPF_MISC | libc::BPF_TAX, 0),
        step(libc::BPF_ALU | libc::BPF_K | libc::BPF_AND, GENERATION_BITS.into()),
        jump(libc::BPF_JEQ, own.generation.into(), 0, 5),
        // 10: this process's.
        step(libc::BPF_MISC | libc::BPF_TXA, 0),
        place,
        jump(libc::BPF_JGE, own.count as u32, 6, 0),
        add_ahead,
        found,
        // 15: that of the binary before.
        step(libc::BPF_MISC | libc::BPF_TXA, 0),
        place,
        jump(libc::BPF_JGE, own.ahead as u32, 1, 0),
        found,
    ];
    // 19: nobody's yet. Packets of one client go to one socket: all that it sends first has the same id.
    match own.ahead {
        // No socket: the kernel takes the one for these addresses.
        0 => program.push(step(libc::BPF_RET | libc::BPF_K, u32::MAX)),
        _ => program.extend([
            number(6),
            step(libc::BPF_ALU | libc::BPF_K | libc::BPF_MOD, own.count.max(1) as u32),
            add_ahead,
            found,
        ]),
    }
    program
}
