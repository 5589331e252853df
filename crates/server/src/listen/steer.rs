//! Which of an address's SO_REUSEPORT sockets a QUIC packet goes to: the one that its connection id names (`quic::ids`), by a
//! program of the kernel's. After a binary upgrade (USR2) the sockets of the binary before stand in the same group, ahead of
//! ours: what belongs to its connections goes there, what is new comes here.

use crate::master::sys;
use socket2::Socket;
use std::io;
use std::os::fd::AsFd;

/// Bytes of our connection ids.
const ID: u32 = super::quic::ids::LEN as u32;
/// Where the socket's number stands in an id, and where an id begins behind a short header and a long one (RFC 9000 section 17).
const SOCKET: u32 = super::quic::ids::SOCKET as u32;
const SHORT: u32 = 1 + SOCKET;
const LONG: u32 = 6 + SOCKET;

/// The sockets of a process in a group.
#[derive(Clone, Copy)]
pub(super) struct Own {
    /// Sockets of binaries before this one, which stand before its own.
    pub(super) ahead: usize,
    /// How many are its own.
    pub(super) count: usize,
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
    let found = step(libc::BPF_RET | libc::BPF_A, 0);
    // A datagram that is too short for its step ends the program with 0, the first socket.
    let mut program = vec![
        byte(0),
        jump(libc::BPF_JSET, 0x80, 2, 0),
        // A short header (RFC 9000 section 17.3): the id stands behind the first byte.
        number(SHORT),
        found,
    ];
    if own.ahead == 0 {
        // A long header. No socket: the kernel takes the one for these addresses, as it did for the first packet.
        program.push(step(libc::BPF_RET | libc::BPF_K, u32::MAX));
        return program;
    }
    program.extend([
        // A long header (section 17.2) says how long its id is: is it one of ours, of a handshake that is under way?
        byte(5),
        jump(libc::BPF_JEQ, ID, 0, 3),
        number(LONG),
        jump(libc::BPF_JGE, (own.ahead + own.count) as u32, 1, 0),
        found,
        // A new connection: all that its client sends first has the same id.
        number(LONG),
        step(libc::BPF_ALU | libc::BPF_K | libc::BPF_MOD, own.count.max(1) as u32),
        step(libc::BPF_ALU | libc::BPF_K | libc::BPF_ADD, own.ahead as u32),
        found,
    ]);
    program
}
