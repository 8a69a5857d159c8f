//! A routing trace. It holds, for each token and layer, the experts that the router chose, the next
//! best ones, and the predicted ones. `docs/reference/format.md` has the byte map.

use moeflux_core::{ExpertId, LayerIdx, OptionId};

const MAGIC: [u8; 8] = *b"MFXROUTE";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 40;
/// Upper limits of the header's counts, far above those of today's models.
const MAX_LAYERS: u32 = 4096;
const MAX_EXPERTS: u32 = 16_384;
/// Fills the places of predicted experts where fewer than `top_k` were predicted.
const NONE: u16 = u16::MAX;
/// A score of 1.0 as it is stored: scores are `u16` fractions of this value.
const ONE: f32 = 65_535.0;

/// The header of a trace: the dimensions of the model and the content of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceShape {
    /// The layers that have routed experts, ascending.
    pub layers: Vec<LayerIdx>,
    /// Experts of a layer.
    pub n_experts: usize,
    /// Experts that a token gets in a layer.
    pub top_k: usize,
    /// Experts whose scores are recorded for each token and layer; the chosen ones come first.
    pub n_scores: usize,
    /// Whether predicted experts are recorded.
    pub has_predictions: bool,
    /// Bytes that one expert takes in an expert cache.
    pub slot_bytes: u64,
}

/// Why bytes cannot be read as a routing trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The bytes do not begin with the magic of a routing trace.
    #[error("not a routing trace: record one with {}", OptionId::RecordRouting)]
    Magic,
    /// The trace has another format version.
    #[error(
        "routing trace of version {version}; this program reads version {VERSION}: record it again"
    )]
    Version {
        /// The version in the file.
        version: u32,
    },
    /// A count in the header is out of range, or the layers do not ascend.
    #[error("routing trace: {name} is {value}; {rule}")]
    Figure {
        /// The name of the count.
        name: &'static str,
        /// Its value in the file.
        value: u64,
        /// The rule that the value breaks.
        rule: &'static str,
    },
    /// The file ends early.
    #[error("routing trace: {len} bytes end inside {what}: record it again")]
    Cut {
        /// Bytes of the file.
        len: usize,
        /// The part of the file that is incomplete.
        what: &'static str,
    },
    /// A token has an expert that does not exist, or has an expert twice in one layer.
    #[error("routing trace: token {token} has expert {expert} in layer {layer}, which is {rule}")]
    Expert {
        /// The index of the token.
        token: usize,
        /// The layer.
        layer: u16,
        /// The expert.
        expert: u16,
        /// What is wrong with it.
        rule: &'static str,
    },
}

/// One layer's routing of one token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TracedLayer {
    /// The best experts with their scores, which are probabilities if the router computes
    /// probabilities. The first `top_k` entries are the chosen experts, in rank order.
    pub scores: Vec<(ExpertId, f32)>,
    /// Predicted experts, the most probable first; empty if none were predicted.
    pub predicted: Vec<ExpertId>,
}

/// A trace in memory.
#[derive(Clone, Debug)]
pub struct RoutingTrace {
    shape: TraceShape,
    /// The bytes after the header and the table of layers.
    tokens: Vec<u8>,
}

impl TraceShape {
    /// Encodes the header, with which a trace file begins.
    pub fn header(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + 2 * self.layers.len());
        out.extend(MAGIC);
        let figures = [self.layers.len(), self.n_experts, self.top_k, self.n_scores];
        out.extend(VERSION.to_le_bytes());
        for figure in figures.into_iter().chain([self.n_predicted()]) {
            out.extend(u32::try_from(figure).expect("figures are small").to_le_bytes());
        }
        out.extend(self.slot_bytes.to_le_bytes());
        for layer in &self.layers {
            out.extend(layer.0.to_le_bytes());
        }
        out
    }

    fn n_predicted(&self) -> usize {
        if self.has_predictions { self.top_k } else { 0 }
    }

    fn layer_bytes(&self) -> usize {
        4 * self.n_scores + 2 * self.n_predicted()
    }

    fn token_bytes(&self) -> usize {
        self.layers.len() * self.layer_bytes()
    }

    /// Appends one token to `out`. `token` has one entry for each of `layers`, in order.
    ///
    /// # Panics
    /// If the number of layers or of scores differs from this shape.
    pub fn encode(&self, token: &[TracedLayer], out: &mut Vec<u8>) {
        assert_eq!(token.len(), self.layers.len(), "layers of a token");
        for layer in token {
            assert_eq!(layer.scores.len(), self.n_scores, "scores of a layer");
            for (expert, score) in &layer.scores {
                out.extend(expert.0.to_le_bytes());
                let score = (score.clamp(0.0, 1.0) * ONE).round() as u16;
                out.extend(score.to_le_bytes());
            }
            let predicted =
                layer.predicted.iter().map(|expert| expert.0).chain(std::iter::repeat(NONE));
            for expert in predicted.take(self.n_predicted()) {
                out.extend(expert.to_le_bytes());
            }
        }
    }

    fn parse(bytes: &[u8]) -> Result<(TraceShape, usize), TraceError> {
        if bytes.get(..8) != Some(&MAGIC[..]) {
            return Err(TraceError::Magic);
        }
        let cut = |what| TraceError::Cut { len: bytes.len(), what };
        let head: &[u8] = bytes.get(8..HEADER_BYTES).ok_or(cut("the header"))?;
        let figure = |i: usize| {
            let word = &head[4 * i..4 * i + 4];
            u32::from_le_bytes([word[0], word[1], word[2], word[3]])
        };
        let version = figure(0);
        if version != VERSION {
            return Err(TraceError::Version { version });
        }
        let within = |name, value: u32, min: u32, max: u32, rule| {
            let refused = TraceError::Figure { name, value: u64::from(value), rule };
            if (min..=max).contains(&value) { Ok(value) } else { Err(refused) }
        };
        let n_layers = within("n_layers", figure(1), 1, MAX_LAYERS, "1 to 4096 are possible")?;
        let n_experts = within("n_experts", figure(2), 1, MAX_EXPERTS, "1 to 16384 are possible")?;
        let top_k = within("top_k", figure(3), 1, n_experts, "it must be 1 to n_experts")?;
        let n_scores =
            within("n_scores", figure(4), top_k, n_experts, "it must be top_k to n_experts")?;
        let n_predicted = figure(5);
        if n_predicted != 0 {
            within("n_predicted", n_predicted, top_k, top_k, "it must be 0 or top_k")?;
        }
        let end = HEADER_BYTES + 2 * n_layers as usize;
        let table = bytes.get(HEADER_BYTES..end).ok_or(cut("the table of layers"))?;
        let layers: Vec<LayerIdx> = table
            .chunks_exact(2)
            .map(|chunk| LayerIdx(u16::from_le_bytes([chunk[0], chunk[1]])))
            .collect();
        if let Some(pair) = layers.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            let (name, value) = ("layer", u64::from(pair[1].0));
            return Err(TraceError::Figure { name, value, rule: "layers must ascend" });
        }
        let shape = TraceShape {
            layers,
            n_experts: n_experts as usize,
            top_k: top_k as usize,
            n_scores: n_scores as usize,
            has_predictions: n_predicted != 0,
            slot_bytes: u64::from(figure(6)) | u64::from(figure(7)) << 32,
        };
        Ok((shape, end))
    }
}

impl RoutingTrace {
    /// Reads a trace from the bytes of a file.
    ///
    /// # Errors
    /// If the bytes are not a trace, or are damaged or incomplete.
    pub fn parse(mut bytes: Vec<u8>) -> Result<RoutingTrace, TraceError> {
        let (shape, start) = TraceShape::parse(&bytes)?;
        let len = bytes.len();
        let tokens = bytes.split_off(start);
        if !tokens.len().is_multiple_of(shape.token_bytes()) {
            return Err(TraceError::Cut { len, what: "a token" });
        }
        let trace = RoutingTrace { shape, tokens };
        trace.check()?;
        Ok(trace)
    }

    fn check(&self) -> Result<(), TraceError> {
        let TraceShape { n_experts, n_scores, .. } = self.shape;
        let mut seen = vec![usize::MAX; n_experts];
        let layers = self.tokens.chunks_exact(self.shape.layer_bytes());
        for (i, layer) in layers.enumerate() {
            let at = |expert, rule| TraceError::Expert {
                token: i / self.shape.layers.len(),
                layer: self.shape.layers[i % self.shape.layers.len()].0,
                expert,
                rule,
            };
            let (scores, predicted) = layer.split_at(4 * n_scores);
            for score in scores.chunks_exact(4) {
                let expert = u16::from_le_bytes([score[0], score[1]]);
                let Some(seen) = seen.get_mut(usize::from(expert)) else {
                    return Err(at(expert, "beyond the last"));
                };
                if std::mem::replace(seen, i) == i {
                    return Err(at(expert, "there twice"));
                }
            }
            for expert in predicted.chunks_exact(2) {
                let expert = u16::from_le_bytes([expert[0], expert[1]]);
                if expert != NONE && usize::from(expert) >= n_experts {
                    return Err(at(expert, "beyond the last"));
                }
            }
        }
        Ok(())
    }

    /// The header of the trace.
    pub fn shape(&self) -> &TraceShape {
        &self.shape
    }

    /// Tokens recorded.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len() / self.shape.token_bytes()
    }

    /// The routing of a token in one layer; `place` is the layer's index in [`TraceShape::layers`].
    ///
    /// # Panics
    /// If there is no such token or layer.
    pub fn layer(&self, token: usize, place: usize) -> TracedLayer {
        let mut out = TracedLayer::default();
        self.read(token, place, &mut out);
        out
    }

    /// Writes the result of [`RoutingTrace::layer`] to `out`, whose memory is reused.
    pub(crate) fn read(&self, token: usize, place: usize, out: &mut TracedLayer) {
        assert!(place < self.shape.layers.len(), "no such layer");
        let len = self.shape.layer_bytes();
        let start = token * self.shape.token_bytes() + place * len;
        let (scores, predicted) = self.tokens[start..start + len].split_at(4 * self.shape.n_scores);
        out.scores.clear();
        out.scores.extend(scores.chunks_exact(4).map(|chunk| {
            let score = u16::from_le_bytes([chunk[2], chunk[3]]);
            (ExpertId(u16::from_le_bytes([chunk[0], chunk[1]])), f32::from(score) / ONE)
        }));
        out.predicted.clear();
        let experts =
            predicted.chunks_exact(2).map(|chunk| u16::from_le_bytes([chunk[0], chunk[1]]));
        out.predicted.extend(experts.filter(|&expert| expert != NONE).map(ExpertId));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> TraceShape {
        let layers = vec![LayerIdx(1), LayerIdx(3)];
        TraceShape {
            layers,
            n_experts: 8,
            top_k: 2,
            n_scores: 3,
            has_predictions: true,
            slot_bytes: 1 << 40,
        }
    }

    fn layer(experts: [u16; 3], predicted: &[u16]) -> TracedLayer {
        TracedLayer {
            scores: experts.iter().map(|&expert| (ExpertId(expert), 0.25)).collect(),
            predicted: predicted.iter().map(|&expert| ExpertId(expert)).collect(),
        }
    }

    fn file(tokens: &[[TracedLayer; 2]]) -> Vec<u8> {
        let mut bytes = shape().header();
        tokens.iter().for_each(|token| shape().encode(token, &mut bytes));
        bytes
    }

    #[track_caller]
    fn check_refused(bytes: Vec<u8>, message: &str) {
        assert_eq!(RoutingTrace::parse(bytes).unwrap_err().to_string(), message);
    }

    #[test]
    fn what_was_written_is_read() {
        let tokens = [
            [layer([1, 7, 0], &[]), layer([0, 2, 4], &[2, 0])],
            [layer([5, 6, 7], &[]), layer([7, 1, 3], &[1])],
        ];
        let trace = RoutingTrace::parse(file(&tokens)).unwrap();
        assert_eq!(*trace.shape(), shape());
        assert_eq!(trace.n_tokens(), 2);
        for (token, want) in tokens.iter().enumerate() {
            for (place, want) in want.iter().enumerate() {
                let got = trace.layer(token, place);
                assert_eq!(got.predicted, want.predicted);
                for (got, want) in got.scores.iter().zip(&want.scores) {
                    assert_eq!(got.0, want.0);
                    assert!((got.1 - want.1).abs() < 1.0 / ONE);
                }
            }
        }
    }

    #[test]
    fn refuses_what_makes_no_sense() {
        let good = file(&[[layer([1, 7, 0], &[]), layer([0, 2, 4], &[2, 0])]]);
        check_refused(Vec::new(), "not a routing trace: record one with record_routing");
        let message = "routing trace: 20 bytes end inside the header: record it again";
        check_refused(good[..20].to_vec(), message);
        let message = "routing trace: 41 bytes end inside the table of layers: record it again";
        check_refused(good[..41].to_vec(), message);
        let len = good.len() - 1;
        let message = format!("routing trace: {len} bytes end inside a token: record it again");
        check_refused(good[..len].to_vec(), &message);
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            bytes
        };
        let message = "routing trace of version 9; this program reads version 1: record it again";
        check_refused(with(8, 9), message);
        check_refused(with(12, 0), "routing trace: n_layers is 0; 1 to 4096 are possible");
        check_refused(with(20, 9), "routing trace: top_k is 9; it must be 1 to n_experts");
        check_refused(with(24, 1), "routing trace: n_scores is 1; it must be top_k to n_experts");
        check_refused(with(28, 1), "routing trace: n_predicted is 1; it must be 0 or top_k");
        check_refused(with(42, 1), "routing trace: layer is 1; layers must ascend");
        let message = "routing trace: token 0 has expert 8 in layer 1, which is beyond the last";
        check_refused(with(44, 8), message);
        let message = "routing trace: token 0 has expert 7 in layer 1, which is there twice";
        check_refused(with(44, 7), message);
    }
}
