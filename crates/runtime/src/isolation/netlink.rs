//! Requests to the kernel over netlink sockets: messages, attributes and acknowledgements.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
/// Creates what the message describes.
pub(super) const CREATE: u16 = 0x400;
/// Marks an attribute that contains attributes.
const NESTED: u16 = 0x8000;
/// Message type of an acknowledgement; it carries an error number, 0 for success.
const ERROR: u16 = 2;
/// Length of a message header.
const HEADER: usize = 16;

/// A sequence of messages that is sent at once.
#[derive(Default)]
pub(super) struct Messages {
    bytes: Vec<u8>,
    acknowledged: u32,
}

impl Messages {
    /// Adds a message with a fixed part and attributes, and asks for an acknowledgement.
    pub(super) fn request(self, kind: u16, flags: u16, fixed: &[u8], attributes: &[u8]) -> Self {
        let mut added = self.message(kind, flags | ACK, fixed, attributes);
        added.acknowledged += 1;
        added
    }

    /// Adds a message without an acknowledgement.
    pub(super) fn message(mut self, kind: u16, flags: u16, fixed: &[u8], attributes: &[u8]) -> Self {
        let length = HEADER + fixed.len() + attributes.len();
        self.bytes.extend((length as u32).to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((flags | REQUEST).to_ne_bytes());
        self.bytes.extend([0; 8]); // sequence number and port: answers come in order, on this socket
        self.bytes.extend(fixed);
        self.bytes.extend(attributes);
        self
    }

    /// Sends all messages and waits for their acknowledgements. Without a protocol they go to the
    /// subsystem of links, addresses and routes.
    pub(super) fn send(self, protocol: Option<Protocol>) -> io::Result<()> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        sendto(&socket, &self.bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut missing = self.acknowledged;
        while missing > 0 {
            missing = missing.saturating_sub(acknowledgements(&socket)?);
        }
        Ok(())
    }
}

/// Receives acknowledgements and counts them; an error if one reports a failure.
fn acknowledgements(socket: &OwnedFd) -> io::Result<u32> {
    let mut buffer = [0; 8192];
    let (length, _) = recv(socket, &mut buffer[..], RecvFlags::empty())?;
    let mut rest = &buffer[..length];
    let mut count = 0;
    while rest.len() >= HEADER + 4 {
        let size = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
        let kind = u16::from_ne_bytes([rest[4], rest[5]]);
        if kind == ERROR {
            let code = i32::from_ne_bytes([rest[16], rest[17], rest[18], rest[19]]);
            if code != 0 {
                return Err(io::Error::from_raw_os_error(-code));
            }
            count += 1;
        }
        rest = rest.get(size.max(HEADER).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(count)
}

/// An attribute with this value, padded to four bytes.
pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(value.len() + 8);
    bytes.extend((value.len() as u16 + 4).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// An attribute that contains these attributes.
pub(super) fn nested(kind: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NESTED, &attributes.concat())
}

/// An attribute with a text.
pub(super) fn text(kind: u16, value: &str) -> Vec<u8> {
    attribute(kind, &[value.as_bytes(), &[0]].concat())
}

/// An attribute with a number in network byte order.
pub(super) fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_their_length_is_not() {
        assert_eq!(attribute(1, &[7]), [5, 0, 1, 0, 7, 0, 0, 0]);
        assert_eq!(nested(2, &[attribute(1, &[7])])[..4], [12, 0, 2, 0x80]);
    }

    #[test]
    fn a_message_has_its_length_and_the_flags_of_a_request() {
        let messages = Messages::default().request(16, CREATE, &[1, 2, 3, 4], &[]);
        assert_eq!(messages.bytes[..8], [20, 0, 0, 0, 16, 0, 0x5, 0x4]);
        assert_eq!(messages.acknowledged, 1);
    }
}
