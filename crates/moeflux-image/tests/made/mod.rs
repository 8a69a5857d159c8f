//! Files that are made byte by byte.

use std::ops::Range;

/// A chunk of a PNG with its checksum.
pub(crate) fn png_chunk(name: &[u8; 4], content: &[u8]) -> Vec<u8> {
    let mut crc = flate2::Crc::new();
    crc.update(name);
    crc.update(content);
    let len = u32::try_from(content.len()).expect("a short chunk").to_be_bytes();
    [len.as_slice(), name, content, &crc.sum().to_be_bytes()].concat()
}

pub(crate) fn png(chunks: &[(&[u8; 4], &[u8])]) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (name, content) in chunks {
        file.extend_from_slice(&png_chunk(name, content));
    }
    if !chunks.iter().any(|chunk| chunk.0 == b"IEND") {
        file.extend_from_slice(&png_chunk(b"IEND", &[]));
    }
    file
}

pub(crate) fn png_header(width: u32, height: u32, depth: u8, colours: u8) -> Vec<u8> {
    let sides = [width.to_be_bytes(), height.to_be_bytes()].concat();
    [sides.as_slice(), &[depth, colours, 0, 0, 0]].concat()
}

/// A GIF with a palette of four colours and one frame: left, top, width, height, and its codes.
pub(crate) fn gif(screen: (u16, u16), frame: (u16, u16, u16, u16), codes: &[u8]) -> Vec<u8> {
    let numbers = |numbers: &[u16]| -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    };
    let (left, top, width, height) = frame;
    [
        b"GIF89a".as_slice(),
        &numbers(&[screen.0, screen.1]),
        &[0x81, 0, 0],
        &[9; 12],
        b",",
        &numbers(&[left, top, width, height]),
        &[0],
        codes,
        b";",
    ]
    .concat()
}

/// A segment of a JPEG: a scan reaches to the next marker.
pub(crate) struct Segment {
    pub(crate) marker: u8,
    pub(crate) range: Range<usize>,
}

pub(crate) fn jpeg_segments(file: &[u8]) -> Vec<Segment> {
    let (mut segments, mut at) = (Vec::new(), 2);
    while file[at + 1] != 0xd9 {
        let start = at;
        let marker = file[at + 1];
        at += 2 + usize::from(u16::from_be_bytes([file[at + 2], file[at + 3]]));
        while marker == 0xda && (file[at] != 0xff || matches!(file[at + 1], 0 | 0xd0..=0xd7)) {
            at += 1;
        }
        segments.push(Segment { marker, range: start..at });
    }
    segments
}

/// A WebP of chunks.
pub(crate) struct Webp(Vec<u8>);

impl Webp {
    pub(crate) fn simple(name: &[u8; 4], content: &[u8]) -> Vec<u8> {
        Self(Vec::new()).chunk(name, content).file()
    }

    pub(crate) fn extended(flags: u8, canvas: (u32, u32)) -> Self {
        let side = |side: u32| (side - 1).to_le_bytes();
        let (width, height) = (side(canvas.0), side(canvas.1));
        let header = [&[flags, 0, 0, 0], &width[..3], &height[..3]].concat();
        Self(Vec::new()).chunk(b"VP8X", &header)
    }

    pub(crate) fn chunk(mut self, name: &[u8; 4], content: &[u8]) -> Self {
        let len = u32::try_from(content.len()).expect("a short chunk").to_le_bytes();
        self.0.extend_from_slice(name);
        self.0.extend_from_slice(&len);
        self.0.extend_from_slice(content);
        if !content.len().is_multiple_of(2) {
            self.0.push(0);
        }
        self
    }

    pub(crate) fn file(self) -> Vec<u8> {
        let len = u32::try_from(self.0.len() + 4).expect("a short file").to_le_bytes();
        [b"RIFF".as_slice(), &len, b"WEBP", &self.0].concat()
    }
}

/// Bits from the lowest of each byte.
#[derive(Default)]
struct BitWriter {
    bytes: Vec<u8>,
    n_bits: usize,
}

impl BitWriter {
    fn put(&mut self, value: u32, n_bits: u32) {
        for i in 0..n_bits {
            if self.n_bits.is_multiple_of(8) {
                self.bytes.push(0);
            }
            let last = self.bytes.len() - 1;
            self.bytes[last] |= (((value >> i) & 1) as u8) << (self.n_bits % 8);
            self.n_bits += 1;
        }
    }

    /// A code of a single symbol of eight bits.
    fn put_single(&mut self, symbol: u32) {
        self.put(0b101, 3);
        self.put(symbol, 8);
    }

    /// A code of eleven symbols, of 1, 2, ... 10, 10 bits, whose table has 1024 entries.
    fn put_long(&mut self) {
        // The code of the lengths 1 to 10: six of three bits, four of four, in the order of the format.
        self.put(0, 1);
        self.put(10, 4);
        for of_length in [0, 0, 0, 3, 3, 3, 3, 3, 0, 3, 4, 4, 4, 4] {
            self.put(of_length, 3);
        }
        self.put(1, 1);
        self.put(1, 3);
        self.put(9, 4);
        for length in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10] {
            let (code, n_bits) = if length <= 6 { (length - 1, 3) } else { (length + 5, 4) };
            for i in (0..n_bits).rev() {
                self.put(code >> i, 1);
            }
        }
    }
}

/// A lossless WebP of 4 x 4 pixels with `n_groups` groups of codes, in eleven bytes a code.
pub(crate) fn lossless_groups(n_groups: u32) -> Vec<u8> {
    let mut bits = BitWriter::default();
    bits.put(0x2f, 8);
    bits.put(3, 14);
    bits.put(3, 14);
    bits.put(0, 4);
    // No transform, no cache, and blocks of 4 x 4 pixels, whose one group is the last.
    bits.put(0, 2);
    bits.put(1, 1);
    bits.put(0, 3);
    bits.put(0, 1);
    let last = n_groups - 1;
    for symbol in [last & 0xff, last >> 8, 0, 0, 0] {
        bits.put_single(symbol);
    }
    for _ in 0..5 * n_groups {
        bits.put_long();
    }
    bits.put(0, 32);
    (0..40).for_each(|_| bits.put(0, 32));
    Webp::simple(b"VP8L", &bits.bytes)
}
