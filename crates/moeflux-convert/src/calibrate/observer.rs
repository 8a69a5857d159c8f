//! What the routed experts of a model are given to multiply.

use std::ops::Range;
use std::sync::Arc;

use moeflux_backend::{Backend, Cols, DeviceError, ExpertCall, ExpertFunction, Experts, Vector};
use moeflux_core::quant::{Float, MatrixFormat};
use moeflux_core::{
    Expert, ExpertId, ExpertLayout, ExpertMemory, HostBuf, LayerIdx, MatrixLayout, PartSpan,
};
use moeflux_engine::EngineError;
use moeflux_model::ExpertObserver;

use crate::importance::Samples;

/// What is known of an expert's inputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ExpertSums {
    /// Rows that chose it.
    pub(crate) n_rows: u32,
    /// Sum of the squares of how much its output counted in them.
    pub(crate) weight: f32,
    /// For each column of gate and up the sum of the squares of its inputs,
    /// each as often as `weight` counts its row.
    pub(crate) input: Vec<f32>,
    /// For each column of down the sum of the squares of its inputs, weighted alike.
    pub(crate) inner: Vec<f32>,
}

/// Sums up the squares of experts' inputs.
#[derive(Debug, Default)]
pub(crate) struct Moments {
    /// By layer, then by expert.
    pub(crate) layers: Vec<Vec<ExpertSums>>,
    /// By layer.
    pub(crate) samples: Vec<Samples>,
    n_experts: usize,
    probe: Option<Probe>,
    /// Zeros in place of what some families add to down's product.
    no_bias: Option<Vector>,
}

impl Moments {
    pub(crate) fn new(n_layers: usize, n_experts: usize) -> Moments {
        let (layers, samples) = (vec![Vec::new(); n_layers], vec![Samples::default(); n_layers]);
        Moments { layers, samples, n_experts, probe: None, no_bias: None }
    }

    /// Refuses sums that are no finite numbers.
    pub(super) fn check_finite(&self) -> Result<(), EngineError> {
        for (layer, experts) in self.layers.iter().enumerate() {
            for (expert, sums) in experts.iter().enumerate() {
                let mut all = sums.input.iter().chain(&sums.inner).chain([&sums.weight]);
                if let Some(value) = all.find(|sum| !sum.is_finite()) {
                    let what = format!("an input of expert {expert} of layer {layer}");
                    return Err(EngineError::NotFinite { what, value: *value });
                }
            }
        }
        Ok(())
    }
}

impl ExpertObserver for Moments {
    fn routed(
        &mut self,
        backend: &mut dyn Backend,
        layer: LayerIdx,
        x: Cols,
        experts: &[ExpertId],
        top_k: usize,
        weights: &[f32],
    ) -> Result<(), DeviceError> {
        let samples = &mut self.samples[layer.idx()];
        if samples.n_rows() == 0 {
            *samples = Samples::new(x.len, top_k);
        }
        let n_rows = experts.len() / top_k;
        let inputs = backend.read(x.buf, n_rows)?;
        let width = inputs.len() / n_rows.max(1);
        let rows = inputs.chunks_exact(width.max(1)).map(|chunk| &chunk[x.start..][..x.len]);
        samples.see(rows, experts, weights);
        Ok(())
    }

    fn see(
        &mut self,
        backend: &mut dyn Backend,
        layer: LayerIdx,
        op: Experts<'_>,
        weights: &[f32],
    ) -> Result<(), DeviceError> {
        let Some(first) = op.calls.first() else { return Ok(()) };
        let layout = Arc::clone(&first.expert.layout);
        let sums = &mut self.layers[layer.idx()];
        if sums.is_empty() {
            let (input, inner) = (vec![0.0; op.x.len], vec![0.0; layout.intermediate()]);
            let blank = ExpertSums { input, inner, ..ExpertSums::default() };
            sums.resize(self.n_experts, blank);
        }
        add_inputs(sums, backend, op, weights)?;
        if self.probe.as_ref().is_none_or(|probe| probe.source != layout) {
            self.probe = Some(Probe::new(&layout));
        }
        let mut function = op.function;
        if let ExpertFunction::Gated { biases: Some(biases), .. } = &mut function {
            let zeros = || backend.load_vector(&vec![0.0; self.n_experts * layout.down.rows]);
            biases.down = *self.no_bias.get_or_insert_with(zeros);
        }
        let probe = self.probe.as_mut().expect("made above");
        for columns in probe.blocks() {
            for call in op.calls {
                let probed = [probe.call(call, &columns)];
                backend.experts(Experts { calls: &probed, function, ..op });
                let [probed] = probed;
                probe.take_back(probed, &columns);
            }
            add_inner(&mut self.layers[layer.idx()], backend, op, weights, columns)?;
        }
        Ok(())
    }
}

/// Adds the squares of what gate and up multiply.
fn add_inputs(
    sums: &mut [ExpertSums],
    backend: &mut dyn Backend,
    op: Experts<'_>,
    weights: &[f32],
) -> Result<(), DeviceError> {
    let rows = op.calls.iter().flat_map(|call| &call.rows);
    let n_rows = rows.map(|row| row.row as usize + 1).max().unwrap_or(0);
    let x = backend.read(op.x.buf, n_rows)?;
    let width = x.len() / n_rows.max(1);
    for call in op.calls {
        let sums = &mut sums[call.expert.key.expert.idx()];
        for expert_row in &call.rows {
            let weight = weights[expert_row.slot as usize].powi(2);
            sums.n_rows = sums.n_rows.saturating_add(1);
            sums.weight += weight;
            let row = &x[expert_row.row as usize * width + op.x.start..];
            add_squares(&mut sums.input, row, weight);
        }
    }
    Ok(())
}

/// Adds the squares of what down multiplies, which the output slots hold for
/// some of its columns.
fn add_inner(
    sums: &mut [ExpertSums],
    backend: &mut dyn Backend,
    op: Experts<'_>,
    weights: &[f32],
    columns: Range<usize>,
) -> Result<(), DeviceError> {
    let rows = op.calls.iter().flat_map(|call| &call.rows);
    let n_slots = rows.map(|row| row.slot as usize + 1).max().unwrap_or(0);
    let out = backend.read(op.out, n_slots)?;
    let width = out.len() / n_slots.max(1);
    for call in op.calls {
        let sums = &mut sums[call.expert.key.expert.idx()].inner[columns.clone()];
        for row in &call.rows {
            let slot = row.slot as usize;
            add_squares(sums, &out[slot * width..], weights[slot].powi(2));
        }
    }
    Ok(())
}

fn add_squares(sums: &mut [f32], row: &[f32], weight: f32) {
    for (sum, x) in sums.iter_mut().zip(row) {
        *sum += weight * x * x;
    }
}

/// Makes of an expert one that gives out what its last matrix would multiply:
/// the identity takes that matrix's place.
#[derive(Debug)]
struct Probe {
    /// The experts that it is made for.
    source: Arc<ExpertLayout>,
    layout: Arc<ExpertLayout>,
    /// First byte of each extent, the identity's last.
    starts: Vec<usize>,
    n_bytes: usize,
    /// Columns of the source's last matrix.
    n_columns: usize,
    /// Holds the identity for the columns from the first on.
    memory: Option<(HostBuf, usize)>,
}

impl Probe {
    fn new(source: &Arc<ExpertLayout>) -> Probe {
        let n_columns = source.intermediate();
        let rows = n_columns.min(source.down.rows);
        let format = MatrixFormat::Dense(Float::F32);
        let len = format.matrix_bytes(rows, n_columns);
        let mut extents = source.extents.clone();
        let weight = PartSpan { extent: extents.len(), offset: 0, len };
        let nothing = PartSpan { len: 0, ..weight };
        let down = MatrixLayout {
            rows,
            cols: n_columns,
            format,
            weight,
            scales: nothing,
            biases: nothing,
        };
        extents.push(len);
        let mut n_bytes = 0;
        let mut start = |len: &usize| {
            let first = n_bytes;
            n_bytes += len.next_multiple_of(64);
            first
        };
        let starts = extents.iter().map(&mut start).collect();
        let gate_up = source.gate_up;
        let layout = Arc::new(ExpertLayout { extents, gate_up, down });
        Probe { source: Arc::clone(source), layout, starts, n_bytes, n_columns, memory: None }
    }

    /// The columns that are looked at together.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (n_columns, n_outputs) = (self.n_columns, self.layout.down.rows);
        let block = move |first: usize| first..n_columns.min(first + n_outputs);
        (0..n_columns).step_by(n_outputs).map(block)
    }

    /// The call that puts those columns into the call's slots.
    fn call(&mut self, call: &ExpertCall, columns: &Range<usize>) -> ExpertCall {
        let identity = *self.starts.last().expect("the identity's");
        let mut buf = match self.memory.take() {
            Some((buf, first)) if first == columns.start => buf,
            _ => {
                let mut buf = HostBuf::zeroed(self.n_bytes);
                for (row, column) in columns.clone().enumerate() {
                    let at = identity + (row * self.n_columns + column) * size_of::<f32>();
                    buf[at..at + size_of::<f32>()].copy_from_slice(&1f32.to_le_bytes());
                }
                buf
            }
        };
        let extents = self.source.extents.iter().enumerate();
        for ((extent, len), start) in extents.zip(&self.starts) {
            let bytes = call.expert.part(PartSpan { extent, offset: 0, len: *len });
            buf[*start..start + len].copy_from_slice(bytes);
        }
        let memory = ExpertMemory::Owned { buf, starts: self.starts.clone() };
        let layout = Arc::clone(&self.layout);
        let expert = Arc::new(Expert { key: call.expert.key, layout, memory });
        ExpertCall { expert, rows: call.rows.clone() }
    }

    /// Keeps the memory of a call that is done for the next one.
    fn take_back(&mut self, call: ExpertCall, columns: &Range<usize>) {
        if let Some(Expert { memory: ExpertMemory::Owned { buf, .. }, .. }) =
            Arc::into_inner(call.expert)
        {
            self.memory = Some((buf, columns.start));
        }
    }
}

#[cfg(test)]
mod tests {
    use moeflux_backend::cpu::{Cpu, Isa};
    use moeflux_backend::{ActivationPrecision, ExpertRow, Ops};
    use moeflux_core::checkpoint::record_layout;
    use moeflux_core::{ExpertKey, ExpertParts};

    use super::*;

    const HIDDEN: usize = 8;
    /// More than the output slots hold at once.
    const INTERMEDIATE: usize = 20;

    fn value(i: usize) -> f32 {
        ((i * 37 + 11) % 64) as f32 / 32.0 - 1.0
    }

    /// An expert whose element `i` is `value(seed + i)`.
    fn expert(id: u16, layout: &Arc<ExpertLayout>) -> Arc<Expert> {
        let mut buf = HostBuf::zeroed(layout.record_bytes());
        for i in 0..layout.record_bytes() / 4 {
            buf[i * 4..][..4].copy_from_slice(&value(usize::from(id) + i).to_le_bytes());
        }
        let key = ExpertKey { layer: LayerIdx(1), expert: ExpertId(id) };
        let memory = ExpertMemory::Owned { buf, starts: vec![0] };
        Arc::new(Expert { key, layout: Arc::clone(layout), memory })
    }

    /// What an expert's last matrix multiplies.
    fn activated(id: usize, x: &[f32]) -> Vec<f32> {
        let dot = |row: usize| -> f32 {
            x.iter().enumerate().map(|(i, x)| x * value(id + row * HIDDEN + i)).sum()
        };
        let silu = |g: f32| g / (1.0 + (-g).exp());
        (0..INTERMEDIATE).map(|row| silu(dot(row)) * dot(INTERMEDIATE + row)).collect()
    }

    #[test]
    fn squares_are_those_of_what_the_matrices_multiply() {
        let formats = ExpertParts::three([MatrixFormat::Dense(Float::F32); 3]);
        let layout = Arc::new(record_layout(HIDDEN, INTERMEDIATE, formats));
        let mut cpu = Cpu::new(2, Isa::detect());
        let (x, out) = (cpu.alloc(3, HIDDEN + 2), cpu.alloc(6, HIDDEN));
        let inputs: Vec<f32> = (0..3 * (HIDDEN + 2)).map(|i| value(i * 5)).collect();
        cpu.write(x, &inputs);
        let row = |row: usize| &inputs[row * (HIDDEN + 2) + 1..][..HIDDEN];
        let rows = |all: &[(u32, u32)]| -> Vec<ExpertRow> {
            all.iter().map(|(row, slot)| ExpertRow { row: *row, slot: *slot }).collect()
        };
        let calls = [
            ExpertCall { expert: expert(0, &layout), rows: rows(&[(0, 0), (2, 5)]) },
            ExpertCall { expert: expert(2, &layout), rows: rows(&[(1, 2)]) },
        ];
        let op = Experts {
            out,
            x: Cols { buf: x, start: 1, len: HIDDEN },
            rows: 3,
            inputs: ActivationPrecision::F32,
            function: ExpertFunction::SWIGLU,
            calls: &calls,
        };
        let weights = [0.5, 0.0, 0.25, 0.0, 0.0, 2.0];
        let mut moments = Moments::new(2, 3);
        moments.see(&mut cpu, LayerIdx(1), op, &weights).unwrap();
        assert!(moments.layers[0].is_empty());
        let of = |rows: &[(f32, Vec<f32>)]| -> Vec<f32> {
            let n = rows[0].1.len();
            (0..n).map(|i| rows.iter().map(|(w, x)| w * w * x[i] * x[i]).sum()).collect()
        };
        let near = |got: &[f32], want: Vec<f32>| {
            assert_eq!(got.len(), want.len());
            for (got, want) in got.iter().zip(&want) {
                assert!((got - want).abs() < 1e-4 * (1.0 + want.abs()), "{got} {want}");
            }
        };
        let sums = &moments.layers[1];
        assert_eq!(sums.iter().map(|sum| sum.n_rows).collect::<Vec<_>>(), [2, 0, 1]);
        assert_eq!(sums.iter().map(|sum| sum.weight).collect::<Vec<_>>(), [4.25, 0.0, 0.0625]);
        near(&sums[0].input, of(&[(0.5, row(0).to_vec()), (2.0, row(2).to_vec())]));
        near(&sums[0].inner, of(&[(0.5, activated(0, row(0))), (2.0, activated(0, row(2)))]));
        near(&sums[2].inner, of(&[(0.25, activated(2, row(1)))]));
        near(&sums[1].inner, vec![0.0; INTERMEDIATE]);
        let chosen = [0, 2, 1].map(ExpertId);
        moments.routed(&mut cpu, LayerIdx(1), op.x, &chosen, 1, &[0.5, 1.0, 0.25]).unwrap();
        let samples = &moments.samples[1];
        assert_eq!(
            (&samples.experts[..], &samples.weights[..]),
            (&[0, 2, 1][..], &[0.5, 1.0, 0.25][..])
        );
        let mut inputs = vec![0.0; 3 * HIDDEN];
        Float::BF16.decode(&samples.inputs, &mut inputs);
        near(&inputs, [row(0), row(1), row(2)].concat());
    }
}
