//! How much memory the prefix codes of a lossless WebP take.
//!
//! A file may define 65,536 groups of five codes in a few bits each, which become tables of kibibytes.
//! This reads a stream up to and with its codes, as the specification of WebP Lossless has them
//! (chapters 4 to 6), keeps none, and counts what a decoder's tables take.

use crate::size::Size;

/// Symbols of the code of green without a colour cache: 256 levels and 24 lengths.
const N_GREEN: usize = 256 + N_LENGTHS;
const N_LENGTHS: usize = 24;
/// Symbols of the codes of red, blue, alpha and distances.
const OTHER_ALPHABETS: [usize; 4] = [256, 256, 256, 40];

/// In which order the lengths of the code of lengths are stored.
const LENGTH_ORDER: [usize; 19] =
    [17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

const MAX_LENGTH: usize = 15;

/// Codes of at most as many bits are found in a table of four bytes an entry, longer ones in a tree
/// with room for two nodes of sixteen bytes a symbol.
const TABLE_BITS: usize = 10;
const TABLE_ENTRY: u64 = 4;
const TREE_SYMBOL: u64 = 2 * 16;
/// The five codes themselves, in a list that grows by doubling, and their allocations.
const GROUP: u64 = 2048;
/// What reading a code takes, besides two bytes a symbol: the table of the code of its lengths.
const CODE: u64 = 1024;

/// Bytes that the tables of all prefix codes take at most; `None` if the stream is broken.
///
/// The stream begins after the header with its size.
pub(super) fn memory(stream: &[u8], size: Size) -> Option<u64> {
    let mut reader = Reader { bits: Bits::new(stream), nearby: nearby(), memory: 0 };
    let width = reader.transforms(size)?;
    let cache_bits = reader.cache_bits()?;
    let mut n_groups = 1;
    if reader.bits.read(1)? == 1 {
        let groups = reader.block_picture(Size { width, height: size.height })?;
        // Red and green of a block are the number of its group.
        n_groups = groups.iter().map(|argb| (argb >> 8) & 0xffff).max()? + 1;
        // The numbers stay, as four bytes and as two.
        reader.memory += 6 * groups.len() as u64;
    }
    for _ in 0..n_groups {
        reader.group(cache_bits)?;
    }
    Some(reader.memory)
}

struct Reader<'a> {
    bits: Bits<'a>,
    nearby: Vec<(i64, i64)>,
    memory: u64,
}

impl Reader<'_> {
    /// Reads the transforms; the width that is left after them.
    fn transforms(&mut self, size: Size) -> Option<usize> {
        let Size { mut width, height } = size;
        let mut seen = [false; 4];
        while self.bits.read(1)? == 1 {
            let kind = usize::try_from(self.bits.read(2)?).ok()?;
            if std::mem::replace(&mut seen[kind], true) {
                return None;
            }
            match kind {
                // Predictors and colours, by blocks.
                0 | 1 => {
                    let blocks = self.block_picture(Size { width, height })?;
                    self.memory += 4 * blocks.len() as u64;
                }
                // Indices into a table of colours, several to a pixel where it is short.
                3 => {
                    let n_colours = usize::try_from(self.bits.read(8)?).ok()? + 1;
                    self.picture(Size { width: n_colours, height: 1 })?;
                    let shift = match n_colours {
                        0..=2 => 3,
                        3..=4 => 2,
                        5..=16 => 1,
                        _ => 0,
                    };
                    width = width.div_ceil(1 << shift);
                }
                _ => {}
            }
        }
        Some(width)
    }

    /// A picture with one pixel for each block of another, whose size comes first.
    fn block_picture(&mut self, size: Size) -> Option<Vec<u32>> {
        let block = 1 << (self.bits.read(3)? + 2);
        let (width, height) = (size.width.div_ceil(block), size.height.div_ceil(block));
        self.picture(Size { width, height })
    }

    fn cache_bits(&mut self) -> Option<u32> {
        if self.bits.read(1)? == 0 {
            return Some(0);
        }
        self.bits.read(4).filter(|bits| (1..=11).contains(bits))
    }

    /// The five codes of a group, and their memory.
    fn group(&mut self, cache_bits: u32) -> Option<[Code; 5]> {
        let n_cached = if cache_bits == 0 { 0 } else { 1 << cache_bits };
        self.memory += GROUP;
        let green = self.code(N_GREEN + n_cached)?;
        let [red, blue, alpha, distance] = OTHER_ALPHABETS.map(|n| self.code(n));
        Some([green, red?, blue?, alpha?, distance?])
    }

    fn code(&mut self, n_symbols: usize) -> Option<Code> {
        let code = if self.bits.read(1)? == 1 {
            let has_two = self.bits.read(1)? == 1;
            let first_bits = if self.bits.read(1)? == 1 { 8 } else { 1 };
            let widths = if has_two { &[first_bits, 8][..] } else { &[first_bits] };
            let symbols: Option<Vec<u32>> = widths.iter().map(|n| self.bits.read(*n)).collect();
            Code::of_symbols(symbols?, n_symbols)?
        } else {
            let mut lengths = vec![0; n_symbols];
            self.read_lengths(&mut lengths)?;
            Code::of_lengths(&lengths)?
        };
        self.memory += code.memory() + CODE + 2 * n_symbols as u64;
        Some(code)
    }

    /// The lengths of a code, which have a code of their own.
    fn read_lengths(&mut self, lengths: &mut [usize]) -> Option<()> {
        let n_stored = usize::try_from(self.bits.read(4)?).ok()? + 4;
        let mut of_lengths = [0; LENGTH_ORDER.len()];
        for &symbol in LENGTH_ORDER.iter().take(n_stored) {
            of_lengths[symbol] = usize::try_from(self.bits.read(3)?).ok()?;
        }
        let code = Code::of_lengths(&of_lengths)?;
        let mut left = lengths.len();
        if self.bits.read(1)? == 1 {
            let bits = 2 + 2 * self.bits.read(3)?;
            left = usize::try_from(self.bits.read(bits)?).ok()? + 2;
        }
        let (mut at, mut previous) = (0, 8);
        while at < lengths.len() && left > 0 {
            left -= 1;
            let symbol = code.read(&mut self.bits)?;
            let (length, n) = match symbol {
                0..=MAX_LENGTH => (symbol, 1),
                16 => (previous, self.bits.read(2)? + 3),
                17 => (0, self.bits.read(3)? + 3),
                _ => (0, self.bits.read(7)? + 11),
            };
            if (1..=MAX_LENGTH).contains(&symbol) {
                previous = symbol;
            }
            let end = at + usize::try_from(n).ok()?;
            lengths.get_mut(at..end)?.fill(length);
            at = end;
        }
        Some(())
    }

    /// The pixels of a picture within the stream, as ARGB.
    fn picture(&mut self, size: Size) -> Option<Vec<u32>> {
        let cache_bits = self.cache_bits()?;
        let [green, red, blue, alpha, distance] = self.group(cache_bits)?;
        let mut cache = vec![0; 1 << cache_bits];
        let slot = |argb: u32| {
            let hash = argb.wrapping_mul(0x1e35_a7bd);
            if cache_bits == 0 { 0 } else { (hash >> (32 - cache_bits)) as usize }
        };
        let n_pixels = size.width * size.height;
        let mut pixels = Vec::new();
        pixels.try_reserve_exact(n_pixels).ok()?;
        while pixels.len() < n_pixels {
            let symbol = green.read(&mut self.bits)?;
            let start = pixels.len();
            if let Some(cached) = symbol.checked_sub(N_GREEN) {
                pixels.push(*cache.get(cached)?);
                continue;
            }
            if let Some(length) = symbol.checked_sub(256) {
                let length = self.extended(length)?;
                let distance = distance.read(&mut self.bits)?;
                let distance = self.extended(distance)?;
                let distance = self.pixels_back(distance, size.width)?;
                let from = start.checked_sub(distance)?;
                if length > n_pixels - start {
                    return None;
                }
                (0..length).for_each(|i| pixels.push(pixels[from + i]));
                if distance == 1 {
                    continue;
                }
            } else {
                let channels = [&red, &blue, &alpha].map(|code| code.read(&mut self.bits));
                let [red, blue, alpha] = channels;
                let argb = (alpha? << 24) | (red? << 16) | (symbol << 8) | blue?;
                pixels.push(argb as u32);
            }
            // What is repeated or comes from the cache is not put there again, as in the decoder: the
            // two must not part ways on any stream.
            pixels[start..].iter().for_each(|&argb| cache[slot(argb)] = argb);
        }
        Some(pixels)
    }

    /// A length or distance from its symbol and the bits after it.
    fn extended(&mut self, symbol: usize) -> Option<usize> {
        if symbol < 4 {
            return Some(symbol + 1);
        }
        let n_bits = (symbol - 2) >> 1;
        let offset = (2 + (symbol & 1)) << n_bits;
        let bits = self.bits.read(u32::try_from(n_bits).ok()?)?;
        Some(offset + usize::try_from(bits).ok()? + 1)
    }

    /// How many pixels a distance goes back: the first 120 name neighbours above and to the left.
    fn pixels_back(&self, distance: usize, width: usize) -> Option<usize> {
        match self.nearby.get(distance - 1) {
            Some((x, y)) => usize::try_from((x + y * i64::try_from(width).ok()?).max(1)).ok(),
            None => Some(distance - self.nearby.len()),
        }
    }
}

/// The neighbours by their distance: up to seven rows above, from eight columns left to seven right.
/// Of equally far ones the nearer column is first, and left before right.
fn nearby() -> Vec<(i64, i64)> {
    let all = (0..8).flat_map(|y| (-7..=8).map(move |x| (x, y)));
    let mut nearby: Vec<(i64, i64)> = all.filter(|&(x, y)| y > 0 || x > 0).collect();
    nearby.sort_by_key(|&(x, y)| (x * x + y * y, x.abs(), -x));
    nearby
}

/// A canonical prefix code: how many symbols each length has, and the symbols in order.
struct Code {
    counts: [usize; MAX_LENGTH + 1],
    symbols: Vec<usize>,
}

impl Code {
    /// One symbol without bits, or two of one bit in the order of the file.
    fn of_symbols(symbols: Vec<u32>, n_symbols: usize) -> Option<Self> {
        let symbols: Vec<usize> = symbols.into_iter().map(|symbol| symbol as usize).collect();
        let mut counts = [0; MAX_LENGTH + 1];
        counts[1] = symbols.len();
        symbols.iter().all(|&symbol| symbol < n_symbols).then_some(Self { counts, symbols })
    }

    /// The code whose symbols have these lengths, 0 for none; `None` unless it is complete.
    fn of_lengths(lengths: &[usize]) -> Option<Self> {
        let mut counts = [0; MAX_LENGTH + 1];
        let mut symbols: Vec<usize> = (0..lengths.len()).filter(|&i| lengths[i] > 0).collect();
        symbols.sort_by_key(|&symbol| lengths[symbol]);
        symbols.iter().for_each(|&symbol| counts[lengths[symbol]] += 1);
        let used: usize = (1..=MAX_LENGTH).map(|n| counts[n] << (MAX_LENGTH - n)).sum();
        let is_complete = symbols.len() == 1 || used == 1 << MAX_LENGTH;
        is_complete.then_some(Self { counts, symbols })
    }

    /// The next symbol. A code of a single one takes no bits.
    fn read(&self, bits: &mut Bits<'_>) -> Option<usize> {
        if let [symbol] = self.symbols.as_slice() {
            return Some(*symbol);
        }
        let (mut code, mut first, mut before) = (0, 0, 0);
        for count in &self.counts[1..] {
            code = 2 * code + usize::try_from(bits.read(1)?).ok()?;
            first *= 2;
            if code < first + count {
                return self.symbols.get(before + code.checked_sub(first)?).copied();
            }
            first += count;
            before += count;
        }
        None
    }

    fn memory(&self) -> u64 {
        let longest = self.counts.iter().rposition(|&count| count > 0).unwrap_or(0);
        let in_tree: usize = self.counts[TABLE_BITS + 1..].iter().sum();
        TABLE_ENTRY * (1 << longest.min(TABLE_BITS)) + TREE_SYMBOL * in_tree as u64
    }
}

/// Bits from the lowest of each byte.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Bits<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// A number of at most 32 bits, the lowest first.
    fn read(&mut self, n_bits: u32) -> Option<u32> {
        let mut value = 0;
        for i in 0..n_bits {
            let byte = self.bytes.get(self.at / 8)?;
            value |= u32::from(byte >> (self.at % 8) & 1) << i;
            self.at += 1;
        }
        Some(value)
    }
}
