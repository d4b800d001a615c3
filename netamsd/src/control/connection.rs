//! One client: its hello, then its requests one after the other. Every wait for it is bounded.

use std::io;
use std::time::Duration;

use netams_proto::{COOKIE, Error, Greeting, Hello, Request, Response, VERSION, Welcome, frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::timeout;

use super::peer::Access;

/// A client that has not said hello by then is let go.
const HELLO: Duration = Duration::from_secs(5);
/// Between two requests a connection may be silent for this long; a started request must be complete by then.
const IDLE: Duration = Duration::from_secs(60);
/// A client must have taken its answer by then.
const WRITE: Duration = Duration::from_secs(30);

/// Serves one connection to its end: closed by the client, for a protocol error, for silence, or at shutdown.
///
/// # Errors
/// Those of the socket, `TimedOut` included; they concern this client only.
pub(super) async fn serve<H, F>(
    mut stream: UnixStream,
    access: Access,
    timezone: String,
    handler: H,
    mut stopping: watch::Receiver<bool>,
) -> io::Result<()>
where
    H: Fn(Request) -> F,
    F: Future<Output = Response>,
{
    let hello = tokio::select! {
        hello = read(&mut stream, HELLO) => hello?,
        () = stopped(&mut stopping) => return send(&mut stream, Greeting::Refused(Error::Closing)).await,
    };
    let Some(hello) = hello else { return Ok(()) };
    if let Err(error) = check(&hello) {
        return send(&mut stream, Greeting::Refused(error)).await;
    }
    send(&mut stream, Greeting::Welcome(Welcome { cookie: COOKIE, version: VERSION, timezone })).await?;

    loop {
        let frame = tokio::select! {
            frame = read(&mut stream, IDLE) => frame?,
            () = stopped(&mut stopping) => return Ok(()),
        };
        let request = match frame {
            None => return Ok(()),
            Some(Frame::TooLong(len)) => {
                Err(format!("a request of {len} bytes, the limit is {}", frame::MAX_REQUEST))
            }
            Some(Frame::Body(body)) => {
                frame::decode(&body).map_err(|e| format!("not a request of this version: {e}"))
            }
        };
        match request {
            Ok(request) if access.permits(&request) => {
                send_response(&mut stream, handler(request).await).await?
            }
            Ok(_) => send(&mut stream, Response::Error(denied())).await?,
            // What follows a broken frame cannot be told apart from its rest.
            Err(why) => return send(&mut stream, Response::Error(Error::Invalid(why))).await,
        }
    }
}

/// Completes when the server stops.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // An error says that the server is gone, which is the same to a connection.
    drop(stopping.wait_for(|stop| *stop).await);
}

fn denied() -> Error {
    Error::Denied(
        "this request changes something, and you may only read; use sudo, or join the daemon's group".into(),
    )
}

/// Whether the first frame opens a conversation that this daemon can hold.
fn check(hello: &Frame) -> Result<(), Error> {
    let Frame::Body(body) = hello else { return Err(Error::NotNetams) };
    match frame::decode::<Hello>(body) {
        Ok(hello) if hello.cookie != COOKIE => Err(Error::NotNetams),
        Ok(hello) if hello.version != VERSION => {
            Err(Error::Version { daemon: VERSION, client: hello.version })
        }
        Ok(_) => Ok(()),
        Err(_) => Err(Error::NotNetams),
    }
}

/// What arrived: a body, or the announced length of one that is not read.
enum Frame {
    Body(Vec<u8>),
    TooLong(u32),
}

/// The next frame within `limit`; `None` when the client closed between frames.
async fn read(stream: &mut UnixStream, limit: Duration) -> io::Result<Option<Frame>> {
    timeout(limit, async {
        let mut len = [0; 4];
        if stream.read(&mut len[..1]).await? == 0 {
            return Ok(None);
        }
        stream.read_exact(&mut len[1..]).await?;
        let len = u32::from_le_bytes(len);
        if len > frame::MAX_REQUEST {
            return Ok(Some(Frame::TooLong(len)));
        }
        let mut body = vec![0; len as usize];
        stream.read_exact(&mut body).await?;
        Ok(Some(Frame::Body(body)))
    })
    .await?
}

/// Sends an answer of any size. It is encoded off the runtime's thread, which serves the other clients meanwhile.
async fn send_response(stream: &mut UnixStream, response: Response) -> io::Result<()> {
    let bytes = tokio::task::spawn_blocking(move || frame::encode(&response)).await??;
    if bytes.len() - 4 > frame::MAX_RESPONSE as usize {
        let why = format!("the answer takes {} bytes; ask for fewer flows", bytes.len());
        return send(stream, Response::Error(Error::Invalid(why))).await;
    }
    write(stream, &bytes).await
}

/// Sends a short message.
async fn send(stream: &mut UnixStream, message: impl serde::Serialize) -> io::Result<()> {
    write(stream, &frame::encode(&message)?).await
}

async fn write(stream: &mut UnixStream, bytes: &[u8]) -> io::Result<()> {
    timeout(WRITE, stream.write_all(bytes)).await?
}
