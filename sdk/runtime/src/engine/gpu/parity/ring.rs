//! Tests of read-back: order, slots, and device loss.

use super::super::GpuError;
use super::super::program::{Slice, buffer};
use super::super::ring::Ring;
use super::harness::{Gpus, own_gpu};
use crate::engine::gpu::Gpu;

const WORDS: u64 = 64;

/// Fills a buffer with words of `value`, as all later submissions see it.
fn fill(gpu: &Gpu, target: &wgpu::Buffer, value: u32) {
    let bytes: Vec<u8> = (0..WORDS).flat_map(|_| value.to_le_bytes()).collect();
    gpu.queue.write_buffer(target, 0, &bytes);
}

fn part(buffer: &wgpu::Buffer, words: u64) -> Slice {
    Slice { buffer: buffer.clone(), start_byte: 0, bytes: words * 4 }
}

async fn wait(gpu: &Gpu, ring: &mut Ring<u32>) -> (u32, Vec<u32>) {
    ring.ready(gpu).await.unwrap();
    let take =
        |tag, bytes: &[u8]| (tag, bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect());
    ring.next(gpu, take).unwrap().expect("it was waited for")
}

/// Goal: each copy has the values at the time of its request, however often its slot was used before.
async fn comes_back_in_order(gpus: &Gpus) {
    gpus.each(async |gpu| {
        let source = [buffer(gpu, "a", WORDS), buffer(gpu, "b", WORDS)];
        let mut ring = Ring::new(gpu, "ring", 3, 8 * WORDS);
        assert!(ring.is_empty() && ring.next(gpu, |_, _| ()).unwrap().is_none());
        ring.ready(gpu).await.unwrap();
        let mut expected = std::collections::VecDeque::new();
        for i in 0..20 {
            while ring.is_full() || i % 7 == 6 && !ring.is_empty() {
                assert_eq!(wait(gpu, &mut ring).await, expected.pop_front().unwrap());
            }
            fill(gpu, &source[0], i);
            fill(gpu, &source[1], 100 + i);
            let slices = [part(&source[0], u64::from(i) + 1), part(&source[1], 2)];
            ring.read(gpu, &slices, i);
            let mut words = vec![i; i as usize + 1];
            words.extend([100 + i; 2]);
            expected.push_back((i, words));
            assert_eq!(ring.len(), expected.len());
        }
        while !ring.is_empty() {
            // A second wait has no effect.
            ring.ready(gpu).await.unwrap();
            assert_eq!(wait(gpu, &mut ring).await, expected.pop_front().unwrap());
        }
        assert!(expected.is_empty());
        gpu.check().unwrap();
    })
    .await;
}

async fn arrives_without_being_waited_for(gpus: &Gpus) {
    gpus.each(async |gpu| {
        let source = buffer(gpu, "source", WORDS);
        let mut ring = Ring::new(gpu, "ring", 1, 4 * WORDS);
        fill(gpu, &source, 7);
        ring.read(gpu, &[part(&source, 1)], ());
        // A browser delivers nothing during a busy loop, so the test waits for copies of another ring.
        let mut other = Ring::new(gpu, "other", 1, 4);
        let found = loop {
            if let Some(found) = ring.next(gpu, |(), bytes| bytes.to_vec()).unwrap() {
                break found;
            }
            other.read(gpu, &[part(&source, 1)], 0);
            wait(gpu, &mut other).await;
        };
        assert_eq!(found, [7, 0, 0, 0]);
    })
    .await;
}

fn is_lost(result: Result<(), GpuError>) -> bool {
    matches!(result, Err(GpuError::Lost { .. }))
}

/// Goal: device loss is an error, whatever its cause, whether a copy has arrived or not, and also at later calls.
async fn a_lost_device_is_an_error(_: &Gpus) {
    let lose: [fn(&Gpu); 2] = [Gpu::lose, |gpu| gpu.device.destroy()];
    for (lose, arrived) in [(lose[0], false), (lose[0], true), (lose[1], false), (lose[1], true)] {
        let gpu = own_gpu(None).await;
        let source = buffer(&gpu, "source", WORDS);
        let mut ring = Ring::new(&gpu, "ring", 2, 4 * WORDS);
        let mut first = Ring::new(&gpu, "first", 1, 4);
        ring.read(&gpu, &[part(&source, 1)], ());
        if arrived {
            ring.ready(&gpu).await.unwrap();
        }
        lose(&gpu);
        // A browser reports the loss only with the first copy that fails.
        first.read(&gpu, &[part(&source, 1)], ());
        assert!(first.ready(&gpu).await.is_err());
        ring.read(&gpu, &[part(&source, 1)], ());
        assert!(is_lost(ring.ready(&gpu).await));
        assert!(is_lost(ring.next(&gpu, |(), _| ()).map(drop)));
        assert!(is_lost(Ring::<()>::new(&gpu, "ring", 1, 4).ready(&gpu).await));
    }
}

parity!(comes_back_in_order, arrives_without_being_waited_for, a_lost_device_is_an_error);
