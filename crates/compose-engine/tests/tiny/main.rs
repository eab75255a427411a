//! A program for tests with a real engine, on the standard library alone: it is compiled statically by `rustc` itself.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let word = |index: usize| args.get(index).map(String::as_str).unwrap_or_default();
    match word(1) {
        "serve" => serve(word(2)),
        "check" => std::process::exit(i32::from(TcpStream::connect(word(2)).is_err())),
        "exit" => {
            eprintln!("ending with {}", word(2));
            std::process::exit(word(2).parse().unwrap_or(1));
        }
        "long" => {
            // One line of 40,000 bytes, above the 16 KiB that the engine keeps in one piece.
            println!("{}END", "x".repeat(40_000));
            println!("second");
        }
        "cat" => println!("{}", std::fs::read_to_string(word(2)).unwrap_or_default()),
        "echo" => {
            println!("ready");
            for line in std::io::stdin().lines().map_while(Result::ok) {
                println!("got {line}");
                if line == "end" {
                    return;
                }
            }
        }
        _ => loop {
            std::thread::park();
        },
    }
}

fn serve(port: &str) {
    let listener = TcpListener::bind(format!("0.0.0.0:{port}")).expect("the port is free in a new container");
    println!("serving");
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { continue };
        let mut head = [0_u8; 1024];
        let _ = stream.read(&mut head);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok");
    }
}
