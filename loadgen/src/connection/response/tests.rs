//! Heads and bodies cut anywhere, and what breaks them.

use super::*;

fn head_of(bytes: &[u8]) -> Result<Option<(Head, Vec<u8>)>, BadHttp> {
    let done = HeadReader::default().feed(bytes)?;
    Ok(done.map(|(head, taken)| (head, bytes[taken..].to_vec())))
}

/// Body, rest and whether the end was reached.
fn body_of(framing: &Framing, pieces: &[&[u8]]) -> Result<(Vec<u8>, Vec<u8>, bool), BadHttp> {
    let mut framing = framing.clone();
    let mut body = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let mut input = *piece;
        loop {
            match framing.next(&mut input)? {
                Piece::Data(data) => body.extend_from_slice(data),
                Piece::More => break,
                Piece::End => {
                    let mut rest = input.to_vec();
                    pieces[index + 1..].iter().for_each(|later| rest.extend_from_slice(later));
                    return Ok((body, rest, true));
                }
            }
        }
    }
    Ok((body, Vec::new(), false))
}

const CHUNKED: &[u8] = b"5\r\nhello\r\n6;name=value\r\n world\r\n00\r\nX-Trailer: 1\r\n\r\nrest";

#[test]
fn a_chunked_body_is_the_same_wherever_it_is_cut() {
    let framing = Framing::Chunked(Chunks::default());
    let expected = (b"hello world".to_vec(), b"rest".to_vec(), true);
    for cut in 0..CHUNKED.len() {
        let (left, right) = CHUNKED.split_at(cut);
        assert_eq!(body_of(&framing, &[left, right]).unwrap(), expected, "cut at {cut}");
    }
    let bytes: Vec<&[u8]> = CHUNKED.chunks(1).collect();
    assert_eq!(body_of(&framing, &bytes).unwrap(), expected);
}

#[test]
fn broken_chunks_are_told_apart() {
    let framing = Framing::Chunked(Chunks::default());
    for (bytes, error) in [
        (&b"zz\r\n"[..], BadHttp::ChunkSize),
        (b"\r\n", BadHttp::ChunkSize),
        (b"-1\r\n", BadHttp::ChunkSize),
        (b"5\nhello", BadHttp::ChunkSize),
        (b"5\rhello", BadHttp::ChunkSize),
        (b"fffffffffffffffff\r\n", BadHttp::ChunkSize),
        (b"4\r\nhello\r\n", BadHttp::ChunkEnd),
        (b"6\r\nhello\r\n0\r\n\r\n", BadHttp::ChunkEnd),
        (b"0\r\nX: y\n\r\n", BadHttp::Trailer),
        (b"0\r\n\rx", BadHttp::Trailer),
    ] {
        assert_eq!(body_of(&framing, &[bytes]).unwrap_err(), error, "{:?}", String::from_utf8_lossy(bytes));
    }
    let long_extension = [b"5;".as_slice(), &[b'x'; 5000]].concat();
    assert_eq!(body_of(&framing, &[&long_extension]).unwrap_err(), BadHttp::ChunkSize);
    let long_trailer = [b"0\r\n".as_slice(), &b"a: b\r\n".repeat(5000)].concat();
    assert_eq!(body_of(&framing, &[&long_trailer]).unwrap_err(), BadHttp::Trailer);
}

#[test]
fn a_length_ends_a_body_and_leaves_the_rest() {
    assert_eq!(
        body_of(&Framing::Length(5), &[b"hel", b"loX"]).unwrap(),
        (b"hello".to_vec(), b"X".to_vec(), true)
    );
    assert_eq!(body_of(&Framing::Length(5), &[b"hel"]).unwrap(), (b"hel".to_vec(), vec![], false));
    assert_eq!(body_of(&Framing::UntilClose, &[b"hel"]).unwrap(), (b"hel".to_vec(), vec![], false));
}

#[test]
fn a_head_is_read_wherever_it_is_cut() {
    let bytes = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n\
        HTTP/1.1 503 Busy\r\nContent-Type: application/json\r\nx-request-id: r1\r\nX-Devshard-ID: 9\r\n\
        Retry-After: 2\r\nContent-Length: 2\r\n\r\n{}";
    for cut in 0..bytes.len() - 2 {
        let mut reader = HeadReader::default();
        assert_eq!(reader.feed(&bytes[..cut]).unwrap(), None, "cut at {cut}");
        let (head, taken) = reader.feed(&bytes[cut..]).unwrap().unwrap();
        assert_eq!((head.status, head.framing, head.keep_alive), (503, Framing::Length(2), true));
        assert_eq!(head.content_type.as_deref(), Some("application/json"));
        assert_eq!(head.request_id.as_deref(), Some("r1"));
        assert_eq!(head.devshard_id.as_deref(), Some("9"));
        assert_eq!(head.retry_after.as_deref(), Some("2"));
        assert_eq!(&bytes[cut + taken..], b"{}");
    }
}

#[test]
fn keep_alive_follows_version_header_and_framing() {
    for (text, keep) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive, Close\r\n\r\n", false),
        ("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", false),
        ("HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n", true),
        ("HTTP/1.1 200 OK\r\n\r\n", false),
        ("HTTP/1.1 204 No Content\r\n\r\n", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", false),
    ] {
        assert_eq!(head_of(text.as_bytes()).unwrap().unwrap().0.keep_alive, keep, "{text}");
    }
}

#[test]
fn broken_heads_are_told_apart() {
    let bomb = format!("HTTP/1.1 200 OK\r\n{}", "X-Pad: aaaaaaaaaaaaaaaaaaaaaaaa\r\n".repeat(3000));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(200));
    let interim = "HTTP/1.1 100 Continue\r\n\r\n".repeat(4000);
    for (text, error) in [
        (bomb.as_str(), BadHttp::HeadTooLarge),
        (&many, BadHttp::HeadTooLarge),
        (&interim, BadHttp::HeadTooLarge),
        ("HTTP/1.1 101 Switching\r\n\r\n", BadHttp::Switched),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", BadHttp::ContentLength),
        ("HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n", BadHttp::ContentLength),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n", BadHttp::ContentLength),
        ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", BadHttp::ContentLength),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", BadHttp::TransferCoding),
        ("HTTP/1.1 2x0 OK\r\n\r\n", BadHttp::Head("status")),
        ("HTTP/1.1 200 OK\r\nb@d name: 1\r\n\r\n", BadHttp::Head("header name")),
        ("HTTP/2 200\r\n\r\n", BadHttp::NotHttp("HTTP/2 200\r\n\r\n".to_owned())),
        ("SSH-2.0-x\r\n", BadHttp::NotHttp("SSH-2.0-x\r\n".to_owned())),
        ("\0", BadHttp::NotHttp("\0".to_owned())),
    ] {
        assert_eq!(head_of(text.as_bytes()).unwrap_err(), error, "{}", &text[..text.len().min(60)]);
    }
}
