//! Frames: a little-endian `u32` length, then that many bytes of JSON.

use std::io::{self, Read, Write};

use serde::{Serialize, de::DeserializeOwned};

/// Longest request a daemon reads, bytes.
pub const MAX_REQUEST: u32 = 64 * 1024;
/// Longest response a client reads, bytes.
pub const MAX_RESPONSE: u32 = 1 << 30;

/// One message as a frame.
///
/// # Errors
/// `InvalidData` when the message cannot be encoded or is longer than `u32` can say.
pub fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let len = u32::try_from(bytes.len() - 4).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    Ok(bytes)
}

/// The body of a frame as a message.
///
/// # Errors
/// `InvalidData` when the body is not this kind of message.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    serde_json::from_slice(body).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Writes one message.
///
/// # Errors
/// Those of the writer and of [`encode`].
pub fn write<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    to.write_all(&encode(message)?)?;
    to.flush()
}

/// Reads one message of at most `max` bytes.
///
/// # Errors
/// `UnexpectedEof` when the peer closed, `InvalidData` for a longer frame or another message.
pub fn read<T: DeserializeOwned>(from: &mut impl Read, max: u32) -> io::Result<T> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len);
    if len > max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("frame of {len} bytes, limit {max}")));
    }
    let mut body = Vec::new();
    from.take(u64::from(len)).read_to_end(&mut body)?;
    if body.len() != len as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    decode(&body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FlowQuery, Request};

    #[test]
    fn a_message_survives_the_frame() {
        let asked = Request::Flows(FlowQuery { port: Some(443), ..FlowQuery::default() });
        let bytes = encode(&asked).unwrap();
        assert_eq!(read::<Request>(&mut &bytes[..], MAX_REQUEST).unwrap(), asked);
    }

    #[test]
    fn a_rate_survives_the_frame() {
        for rate in [28_769.057142857142, 51_283.971428571436, f64::MIN_POSITIVE, f64::MAX] {
            let bytes = encode(&rate).unwrap();
            assert_eq!(read::<f64>(&mut &bytes[..], MAX_REQUEST).unwrap(), rate);
        }
    }

    #[test]
    fn a_long_or_cut_frame_is_refused() {
        let long = u32::MAX.to_le_bytes();
        assert_eq!(
            read::<Request>(&mut &long[..], MAX_REQUEST).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        let bytes = encode(&Request::Info).unwrap();
        let cut = &bytes[..bytes.len() - 1];
        assert_eq!(
            read::<Request>(&mut &cut[..], MAX_REQUEST).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }
}
