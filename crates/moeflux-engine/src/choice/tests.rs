//! Which device is chosen on machines that are made up, and what is said of it.

#[cfg(feature = "gpu")]
use super::choose::among;
use super::estimate::{Decision, Work, decide};
use super::rates::Rates;
use super::{DeviceChoice, Reason};
use crate::device::Device;
#[cfg(feature = "gpu")]
use crate::device::probed::candidates;
use crate::device::probed::{Candidate, GpuRates};
#[cfg(feature = "gpu")]
use crate::options::EngineOptions;

const GB: u64 = 1_000_000_000;

/// A model of 35 thousand million weights in 4 bits, of which a token reads 3: 18 GB of experts in 40
/// layers, of which a token reads 0.6, and 1.5 GB of other weights.
fn work(cached_share: f64) -> Work {
    Work {
        bytes_per_token: 2 * GB,
        working_set_bytes: 600_000_000,
        expert_bytes: 18 * GB,
        record_bytes: 1_800_000,
        fixed_bytes: 3 * GB,
        cached_share,
        device_cache: None,
        n_layers: 40,
        n_experts: 256,
    }
}

fn gpu(name: &str, memory: u64, rates: Option<(f64, f64)>) -> Candidate {
    Candidate {
        index: 0,
        maker_name: name.to_owned(),
        memory_bytes: Some(memory),
        free_bytes: None,
        is_software: false,
        is_unified: false,
        reads_host: true,
        lacks: None,
        most_record_bytes: 2 * GB,
        most_experts: 1024,
        key: name.to_owned(),
        rates: rates.map(|(read_gb_s, upload_gb_s)| GpuRates { read_gb_s, upload_gb_s }),
    }
}

/// What is chosen next to a processor whose memory gives so much.
fn chosen(work: &Work, cpu_gb_s: f64, gpus: &[Candidate]) -> DeviceChoice {
    decide(work, cpu_gb_s, &gpus.iter().collect::<Vec<_>>()).choice
}

#[test]
fn a_gpu_that_holds_all_experts_is_chosen() {
    let h100 = gpu("NVIDIA H100", 80 << 30, Some((2800.0, 50.0)));
    let choice = chosen(&work(1.0), 200.0, &[h100]);
    assert_eq!(choice.device, Device::Gpu(Some(0)));
    let tok_s = choice.tok_s.unwrap();
    assert!((150.0..350.0).contains(&tok_s), "{tok_s}");
    let text = choice.to_string();
    assert!(text.starts_with("gpu:0 NVIDIA H100 (80.00 GiB): all experts fit; about "), "{text}");
    assert!(text.ends_with(" times as fast as the processor"), "{text}");
}

#[test]
fn a_small_gpu_is_chosen_only_where_the_processor_has_to_read_the_drive() {
    let laptop = || [gpu("Laptop", 8 << 30, Some((250.0, 6.0)))];
    // All experts in memory that gives 70 GB/s: the bus gives the GPU less.
    let choice = chosen(&work(1.0), 70.0, &laptop());
    assert_eq!(choice.device, Device::Cpu);
    let text = choice.to_string();
    assert!(text.starts_with("cpu: gpu:0 Laptop (8.00 GiB) has room for 2"), "{text}");
    assert!(text.contains("moving the others there takes longer"), "{text}");
    // A third of them: what the GPU holds need not be read from the drive.
    let choice = chosen(&work(0.33), 40.0, &laptop());
    assert_eq!(choice.device, Device::Gpu(Some(0)), "{choice}");
    assert!(choice.to_string().contains(" % of the experts fit; about "), "{choice}");
    // A bound on what it may hold makes it slower.
    let bounded = Work { device_cache: Some(GB / 2), ..work(0.33) };
    assert!(chosen(&bounded, 40.0, &laptop()).tok_s < choice.tok_s);
}

#[test]
fn more_experts_on_a_gpu_make_it_faster() {
    let rates = [8, 12, 16, 24, 48].map(|gib: u64| {
        let gpus = [gpu("x", gib << 30, Some((600.0, 25.0)))];
        chosen(&work(1.0), 20.0, &gpus).tok_s.unwrap()
    });
    assert!(rates.windows(2).all(|pair| pair[0] <= pair[1]), "{rates:?}");
    assert!(rates[4] > 2.0 * rates[0], "{rates:?}");
}

#[test]
fn integrated_gpus_are_chosen_by_what_they_measured() {
    let integrated = |rates| [Candidate { is_unified: true, ..gpu("Iris", 16 << 30, rates) }];
    let slow = chosen(&work(1.0), 70.0, &integrated(Some((75.0, 30.0))));
    assert_eq!(slow.device, Device::Cpu);
    assert!(slow.to_string().contains("shares the memory and would not be faster"), "{slow}");
    let fast = chosen(&work(1.0), 100.0, &integrated(Some((380.0, 100.0))));
    assert_eq!(fast.device, Device::Gpu(Some(0)));
    // Until it was measured, it may be the faster one.
    let Decision { choice, is_preliminary } =
        decide(&work(1.0), 100.0, &integrated(None).iter().collect::<Vec<_>>());
    assert!(is_preliminary && choice.device == Device::Gpu(Some(0)), "{choice}");
}

#[test]
fn the_best_of_several_gpus_is_chosen() {
    let small = gpu("small", 8 << 30, Some((300.0, 12.0)));
    let large = Candidate { index: 1, ..gpu("large", 48 << 30, Some((700.0, 25.0))) };
    let choice = chosen(&work(1.0), 50.0, &[small, large]);
    assert_eq!(choice.device, Device::Gpu(Some(1)));
    assert!(choice.to_string().starts_with("gpu:1 large"), "{choice}");
}

#[test]
fn what_cannot_run_the_model_is_never_chosen() {
    let obstacle =
        |gpu: Candidate, work: Work| work.obstacle(&gpu).map(|reason| reason.to_string());
    let plain = || gpu("x", 80 << 30, None);
    assert_eq!(obstacle(plain(), work(1.0)), None);
    let software = Candidate { is_software: true, ..gpu("llvmpipe", 80 << 30, None) };
    assert_eq!(
        obstacle(software, work(1.0)).unwrap(),
        "the only GPU is a software device (llvmpipe)"
    );
    let old = Candidate { lacks: Some(String::from("it has no subgroup operations")), ..plain() };
    let why = obstacle(old, work(1.0)).unwrap();
    assert!(why.ends_with("cannot run the model: it has no subgroup operations"), "{why}");
    // 3 GB do not fit into nine tenths of 3 GiB, nor into anything unknown.
    let why = obstacle(gpu("x", 3 << 30, None), work(1.0)).unwrap();
    assert!(
        why.contains("x (3.00 GiB) is too small for 2.80 GiB of weights, sessions and activations"),
        "{why}"
    );
    let full = Candidate { free_bytes: Some(GB), ..plain() };
    let why = obstacle(full, work(1.0)).unwrap();
    assert!(why.contains("x (953.67 MiB of 80.00 GiB free) is too small"), "{why}");
    assert!(obstacle(Candidate { memory_bytes: None, ..plain() }, work(1.0)).is_some());
    assert!(obstacle(plain(), Work { n_experts: 2000, ..work(1.0) }).is_some());
    assert!(obstacle(plain(), Work { record_bytes: 3 * GB, ..work(1.0) }).is_some());
}

#[test]
fn a_gpu_that_failed_is_named_with_what_it_said() {
    let h100 = gpu("NVIDIA H100", 80 << 30, Some((2800.0, 50.0)));
    let failed = chosen(&work(1.0), 200.0, &[h100]).failed(String::from("out of memory"));
    assert_eq!(failed.device, Device::Cpu);
    assert_eq!(failed.to_string(), "cpu: gpu:0 NVIDIA H100 (80.00 GiB) is not used: out of memory");
    assert_eq!(DeviceChoice::asked(Device::Gpu(None)).to_string(), "gpu: as asked for");
    assert_eq!(DeviceChoice::cpu(Reason::Small).to_string(), "cpu: the model is small");
}

/// A device of this machine is opened, tested and measured once; the second choice reads the file.
#[test]
#[cfg(feature = "gpu")]
#[expect(clippy::print_stdout, reason = "a test that did not run says so")]
fn a_device_is_opened_once_to_be_measured() {
    let Some(device) = candidates().into_iter().find(|device| device.lacks.is_none()) else {
        println!("SKIP: this machine has no GPU that runs models");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let options = EngineOptions::default().gpu_tuning(Some(dir.path().to_path_buf()));
    // As if it were a device with memory of its own, next to a processor that has to read the drive.
    let device =
        Candidate { memory_bytes: Some(80 << 30), free_bytes: None, is_unified: false, ..device };
    let first = among(&work(0.0), &options, vec![device.clone()]);
    assert!(first._opened.is_some(), "{}", first.choice);
    let known = Rates::read(Some(dir.path()));
    let rates = known.gpu(&device.key).unwrap().unwrap();
    assert!(rates.read_gb_s > 0.0 && rates.upload_gb_s > 0.0, "{rates:?}");
    let second = among(&work(0.0), &options, vec![device.clone()]);
    assert!(second._opened.is_none());
    // A driver that computes something else is not tried again.
    let mut known = known;
    known.keep_gpu(&device.key, Err(String::from("it computes other numbers")));
    known.write(Some(dir.path()));
    let third = among(&work(0.0), &options, vec![device]);
    assert_eq!(third.choice.device, Device::Cpu);
    assert!(third.choice.to_string().ends_with("is not used: it computes other numbers"));
}

#[test]
fn rates_are_remembered_and_damaged_ones_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let at = Some(dir.path());
    let mut rates = Rates::read(at);
    assert_eq!(rates.processor("x"), None);
    rates.keep_processor("x", 50.0);
    let measured = GpuRates { read_gb_s: 300.0, upload_gb_s: 12.0 };
    rates.keep_gpu("a", Ok(measured));
    rates.keep_gpu("b", Err(String::from("wrong")));
    rates.write(at);
    let again = Rates::read(at);
    assert_eq!(again, rates);
    assert_eq!(again.processor("x"), Some(50.0));
    assert_eq!(again.gpu("a"), Some(Ok(measured)));
    assert_eq!(again.gpu("b"), Some(Err("wrong")));
    assert_eq!(again.gpu("c"), None);
    // The newest stay.
    for i in 0..40 {
        rates.keep_gpu(&i.to_string(), Ok(measured));
    }
    assert_eq!((rates.gpu("a"), rates.gpu("39")), (None, Some(Ok(measured))));
    let file = dir.path().join("rates.json");
    let text = std::fs::read_to_string(&file).unwrap();
    for damaged in ["", "{", "[]", &text.replace("50.0", "-1.0"), &text.replace(": 1", ": 7")] {
        std::fs::write(&file, damaged).unwrap();
        assert_eq!(Rates::read(at), Rates::read(None), "{damaged}");
    }
}
