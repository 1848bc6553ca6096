//! What the reference refuses: a program that is wrong does not come through.

use headroom_runners::programs::computation::{Kernel, Launch, Pointwise as P, Reduction, Source, View};
use headroom_runners::programs::{Element, TensorId};
use headroom_runners::reference::{Contents, Problem, ReferenceError, execute};

use super::sketch::{FP16, FP32, Sketch, narrowed, row_major};

/// Sizes of each operand.
type Sizes<'a> = &'a [&'a [u64]];

/// Asserts that a computation is refused in these words.
fn assert_refused(sketch: &Sketch, words: &[&str]) {
    let refusal = sketch.refusal();
    for word in words {
        assert!(refusal.contains(word), "{refusal:?} has no {word:?}");
    }
}

#[test]
fn a_read_of_what_nobody_wrote_is_refused_with_its_launch_kernel_and_place() {
    let mut sketch = Sketch::new();
    let half = sketch.tensor(&[4], FP32);
    sketch.pointwise(P::Constant(1.0), &[], &narrowed(&half, 0, 0, 3));
    let output = sketch.computed(Kernel::Pointwise(P::Relu), &[&half], &[4], FP32);
    sketch.output(&output);
    assert_refused(&sketch, &["launch 1, relu at block result", "reads element 3", "nobody has written"]);
    let problem = Problem::Unwritten { of: half.source, element: 3 };
    assert!(matches!(sketch.run(), Err(ReferenceError::Launch { problem: found, .. }) if found == problem));
    // What was written may be read, a computed value that is no number included.
    let mut sketch = Sketch::new();
    let a = sketch.input(&[1], FP32, &[-1.0]);
    let log = sketch.computed(Kernel::Pointwise(P::Log), &[&a], &[1], FP32);
    let log = sketch.computed(Kernel::Pointwise(P::Copy), &[&log], &[1], FP32);
    assert!(sketch.values(&[&log])[0][0].is_nan());
}

#[test]
fn an_output_that_nobody_wrote_is_refused() {
    let mut sketch = Sketch::new();
    let output = sketch.tensor(&[4], FP32);
    sketch.output(&output);
    assert_refused(&sketch, &["output 0", "element 0", "nobody has written"]);
}

#[test]
fn what_is_freed_or_not_yet_allocated_is_neither_read_nor_written() {
    let mut sketch = Sketch::new();
    let freed = sketch.computed(Kernel::Pointwise(P::Constant(1.0)), &[], &[2], FP32);
    let output = sketch.tensor(&[2], FP32);
    sketch.free(&freed);
    sketch.pointwise(P::Copy, &[&freed], &output);
    assert_refused(&sketch, &["launch 1, copy", "tensor 0 does not live here"]);
    let later = sketch.computation.launches.pop().unwrap();
    sketch.pointwise(P::Constant(0.0), &[], &freed);
    assert_refused(&sketch, &["launch 1, constant", "tensor 0 does not live here"]);
    // Two steps earlier both live.
    sketch.computation.launches.pop();
    sketch.computation.launches.push(Launch { after: 2, ..later });
    assert_eq!(sketch.values(&[&output]), [[1.0, 1.0]]);
}

#[test]
fn what_is_freed_and_allocated_anew_holds_nothing_of_before() {
    let mut sketch = Sketch::new();
    let first = sketch.computed(Kernel::Pointwise(P::Constant(1.0)), &[], &[2], FP32);
    sketch.free(&first);
    let again = sketch.computation.program.steps[0].clone();
    sketch.computation.program.steps.push(again);
    sketch.output(&first);
    assert_refused(&sketch, &["output 0", "nobody has written"]);
}

#[test]
fn a_view_beyond_its_memory_is_refused() {
    let mut sketch = Sketch::new();
    let a = sketch.input(&[4], FP32, &[0.0; 4]);
    let output = sketch.tensor(&[4], FP32);
    sketch.pointwise(P::Copy, &[&View { offset: 1, ..a.clone() }], &output);
    assert_refused(&sketch, &["reaches element 4, and the last is 3"]);
    let reading = &mut sketch.computation.launches[0];
    reading.reads[0] = View { strides: vec![u64::MAX / 2], ..a.clone() };
    assert_refused(&sketch, &["reaches element none"]);
    let launch = &mut sketch.computation.launches[0];
    launch.reads[0] = a;
    launch.writes[0] = View { strides: vec![2], ..output };
    assert_refused(&sketch, &["reaches element 6, and the last is 3"]);
    sketch.computation.launches[0].writes[0].strides.clear();
    assert_refused(&sketch, &["1 sizes and 0 strides"]);
}

#[test]
fn a_launch_reads_what_it_writes_only_element_by_element() {
    let mut sketch = Sketch::new();
    let a = sketch.computed(Kernel::Pointwise(P::Constant(1.0)), &[], &[1, 4], FP32);
    sketch.pointwise(P::Copy, &[&narrowed(&a, 1, 0, 3)], &narrowed(&a, 1, 1, 3));
    assert_refused(&sketch, &["launch 1", "writes element 1", "reads it for another one"]);
    sketch.computation.launches.pop();
    sketch.launch(Kernel::Softmax, &[&a], &[&a]);
    assert_refused(&sketch, &["launch 1, softmax", "reads it for another one"]);
    sketch.computation.launches.pop();
    // Parts that have no element in common are no overlap, interleaved ones neither.
    let [even, odd] = [0, 1].map(|offset| View { offset, sizes: vec![1, 2], strides: vec![4, 2], ..a.clone() });
    sketch.pointwise(P::Affine { factor: 2.0, summand: 0.0 }, &[&even], &odd);
    assert_eq!(sketch.values(&[&a]), [[1.0, 2.0, 1.0, 2.0]]);
}

#[test]
fn an_element_is_written_once() {
    let mut sketch = Sketch::new();
    let output = sketch.tensor(&[4], FP32);
    sketch.pointwise(P::Constant(1.0), &[], &View { strides: vec![0], ..output });
    assert_refused(&sketch, &["writes element 0", "twice"]);
    let mut sketch = Sketch::new();
    let a = sketch.input(&[1, 4], FP32, &[1.0; 4]);
    let b = sketch.input(&[4], FP32, &[1.0; 4]);
    let output = sketch.tensor(&[1, 4], FP32);
    let statistics = sketch.tensor(&[1], FP32);
    let same = [&output, &View { sizes: vec![1], strides: vec![1], ..output.clone() }];
    sketch.launch(Kernel::RmsNorm { epsilon: 1.0 }, &[&a, &b], &same);
    assert_refused(&sketch, &["root-mean-square norm", "twice"]);
    sketch.computation.launches[0].writes[1] = statistics;
    assert!(sketch.run().is_ok());
}

#[test]
fn what_belongs_to_the_caller_is_not_written() {
    let mut sketch = Sketch::new();
    let a = sketch.input(&[2], FP32, &[1.0, 2.0]);
    sketch.pointwise(P::Relu, &[&a], &a);
    assert_refused(&sketch, &["relu at nowhere", "writes to Input(0), which belongs to the caller"]);
}

#[test]
fn a_parameter_or_input_that_there_is_not_is_refused() {
    for (source, words) in [
        (Source::Input(1), "there is no Input(1): the computation has 1 of them"),
        (Source::Parameter(0), "there is no Parameter(0): the computation has 0 of them"),
        (Source::Nothing, "a view of nothing has 2 elements"),
    ] {
        let mut sketch = Sketch::new();
        sketch.input(&[2], FP32, &[1.0, 2.0]);
        let output = sketch.tensor(&[2], FP32);
        sketch.pointwise(P::Copy, &[&row_major(source, FP32, &[2])], &output);
        assert_refused(&sketch, &[words]);
    }
}

#[test]
fn nothing_is_read_and_written_without_memory() {
    let mut sketch = Sketch::new();
    let nothing = row_major(Source::Nothing, FP32, &[1, 0, 2]);
    sketch.pointwise(P::Copy, &[&nothing], &nothing);
    assert_eq!(sketch.values(&[&nothing]), [[]; 1] as [[f64; 0]; 1]);
}

#[test]
fn memory_is_of_one_element_type() {
    let mut sketch = Sketch::new();
    let a = sketch.computed(Kernel::Pointwise(P::Constant(1.0)), &[], &[2], FP32);
    let output = sketch.tensor(&[2], FP32);
    sketch.pointwise(P::Copy, &[&View { element: FP16, ..a }], &output);
    assert_refused(&sketch, &["Float(Fp32)", "Float(Fp16)"]);
}

/// A sketch of one launch over inputs of these sizes (fp32, all ones) that writes tensors of these.
fn launch_over(kernel: Kernel, reads: Sizes<'_>, writes: Sizes<'_>) -> Sketch {
    let mut sketch = Sketch::new();
    let mut input = |sizes: &&[u64]| sketch.input(sizes, FP32, &vec![1.0; sizes.iter().product::<u64>() as usize]);
    let reads: Vec<View> = reads.iter().map(&mut input).collect();
    let writes: Vec<View> = writes.iter().map(|sizes| sketch.tensor(sizes, FP32)).collect();
    sketch.launch(kernel, &reads.iter().collect::<Vec<_>>(), &writes.iter().collect::<Vec<_>>());
    sketch
}

fn flat(stride: u64, padding: u64) -> Kernel {
    Kernel::Convolution { stride: vec![stride; 2], padding: vec![padding; 2], workspace: None }
}

#[test]
fn kernels_take_neither_more_nor_fewer_operands() {
    let one: &[u64] = &[1, 1, 1, 1];
    let norm = Kernel::GroupNorm { groups: 1, epsilon: 1.0 };
    let wrong: [(Kernel, usize, usize, &str); 10] = [
        (Kernel::Pointwise(P::Add), 1, 1, "it has 1 reads, and takes two"),
        (Kernel::Pointwise(P::Constant(0.0)), 1, 1, "it has 1 reads, and takes none"),
        (Kernel::Pointwise(P::Choose), 2, 1, "it has 2 reads, and takes three"),
        (flat(1, 0), 1, 1, "it has 1 reads, and takes two, or three with a bias"),
        (flat(1, 0), 4, 1, "it has 4 reads"),
        (Kernel::MatrixProduct, 2, 2, "it has 2 writes, and takes one"),
        (Kernel::Attention { scale: 1.0, causal: false }, 2, 1, "it has 2 reads, and takes three"),
        (norm, 3, 1, "it has 1 writes, and takes five"),
        (Kernel::LayerNorm { epsilon: 1.0 }, 0, 3, "it has 0 reads"),
        (Kernel::RmsNorm { epsilon: 1.0 }, 1, 2, "it has 1 reads, and takes two"),
    ];
    for (kernel, reads, writes, words) in wrong {
        assert_refused(&launch_over(kernel, &vec![one; reads], &vec![one; writes]), &[words]);
    }
}

#[test]
fn kernels_take_only_operands_that_fit_together() {
    let attention = Kernel::Attention { scale: 1.0, causal: false };
    let product = |transposed| Kernel::BatchedProduct { transposed };
    let mean = |dimension| Kernel::Reduce { reduction: Reduction::Mean, dimension };
    let wrong: [(Kernel, Sizes, Sizes); 17] = [
        (Kernel::Pointwise(P::Copy), &[&[2]], &[&[3]]),
        (Kernel::Pointwise(P::Copy), &[&[1, 1]], &[&[1]]),
        (Kernel::Pointwise(P::Index { dimension: 1, step: 1.0 }), &[], &[&[2]]),
        (flat(1, 0), &[&[1, 2, 3, 3], &[1, 3, 3, 3]], &[&[1, 1, 1, 1]]),
        (flat(1, 1), &[&[1, 2, 3, 3], &[1, 2, 3, 3]], &[&[1, 1, 1, 1]]),
        (flat(0, 0), &[&[1, 2, 3, 3], &[1, 2, 3, 3]], &[&[1, 1, 1, 1]]),
        (flat(1, 0), &[&[1, 2, 2, 2], &[1, 2, 3, 3]], &[&[1, 1, 1, 1]]),
        (flat(1, 0), &[&[1, 2, 3, 3], &[4, 2, 3, 3], &[1]], &[&[1, 4, 1, 1]]),
        (Kernel::MatrixProduct, &[&[2, 3], &[4, 2]], &[&[2, 4]]),
        (product(true), &[&[1, 1, 2, 3], &[1, 1, 3, 4]], &[&[1, 1, 2, 4]]),
        (product(false), &[&[1, 1, 2, 3], &[1, 2, 3, 4]], &[&[1, 1, 2, 4]]),
        (attention, &[&[1, 1, 2, 3], &[1, 1, 4, 3], &[1, 1, 5, 3]], &[&[1, 1, 2, 3]]),
        (Kernel::Softmax, &[&[2, 3]], &[&[3, 2]]),
        (
            Kernel::GroupNorm { groups: 2, epsilon: 1.0 },
            &[&[1, 3], &[3], &[3]],
            &[&[1, 3], &[1, 2], &[1, 2], &[1, 3], &[1, 3]],
        ),
        (Kernel::LayerNorm { epsilon: 1.0 }, &[&[2, 3], &[2]], &[&[2, 3], &[2], &[2]]),
        (mean(1), &[&[2, 3]], &[&[3]]),
        (Kernel::UpsampleNearest, &[&[1, 2, 3, 3]], &[&[1, 3, 6, 6]]),
    ];
    for (kernel, reads, writes) in wrong {
        let error = launch_over(kernel.clone(), reads, writes).run();
        let problem = match &error {
            Err(ReferenceError::Launch { problem, .. }) => problem,
            other => panic!("{kernel:?} over {reads:?}: {other:?}"),
        };
        assert!(matches!(problem, Problem::Shape { .. }), "{kernel:?} over {reads:?}: {problem:?}");
    }
}

#[test]
fn a_convolution_over_two_layouts_is_refused() {
    let mut sketch = launch_over(flat(1, 0), &[&[1, 2, 2, 2], &[2, 2, 1, 1]], &[&[1, 2, 2, 2]]);
    assert!(sketch.run().is_ok());
    sketch.computation.launches[0].reads[0].strides = vec![8, 1, 4, 2];
    assert_refused(&sketch, &["dense in one layout"]);
    sketch.computation.launches[0].writes[0].strides = vec![8, 1, 4, 2];
    sketch.computation.launches[0].reads[1].strides = vec![2, 1, 2, 2];
    assert!(sketch.run().is_ok());
}

#[test]
fn a_convolution_needs_its_workspace_alive() {
    let mut sketch = launch_over(flat(1, 0), &[&[1, 2, 2, 2], &[2, 2, 1, 1]], &[&[1, 2, 2, 2]]);
    let workspace = TensorId(7);
    let Kernel::Convolution { workspace: own, .. } = &mut sketch.computation.launches[0].kernel else { panic!() };
    *own = Some(workspace);
    assert_refused(&sketch, &["launch 0, convolution", "tensor 7 does not live here"]);
}

#[test]
fn an_index_that_points_nowhere_is_refused() {
    for index in [-1.0, 2.0] {
        let mut sketch = Sketch::new();
        let table = sketch.input(&[2, 1], FP32, &[1.0, 2.0]);
        let ids = sketch.input(&[1], Element::Int64, &[index]);
        sketch.computed(Kernel::Gather, &[&table, &ids], &[1, 1], FP32);
        assert_refused(&sketch, &[&format!("index {index} does not point into 2 rows")]);
    }
    let mut sketch = Sketch::new();
    let table = sketch.input(&[2, 1], FP32, &[1.0, 2.0]);
    let ids = sketch.input(&[1], FP32, &[0.0]);
    sketch.computed(Kernel::Gather, &[&table, &ids], &[1, 1], FP32);
    assert_refused(&sketch, &["indices are integers"]);
}

#[test]
fn steps_and_launches_out_of_order_are_refused() {
    let mut sketch = Sketch::new();
    let a = sketch.computed(Kernel::Pointwise(P::Constant(1.0)), &[], &[2], FP32);
    sketch.free(&a);
    sketch.free(&a);
    assert_refused(&sketch, &["step 2", "tensor 0"]);
    sketch.computation.program.steps.pop();
    let launch = sketch.computation.launches[0].clone();
    for after in [0, 9] {
        let late = Launch { after, ..launch.clone() };
        sketch.computation.launches.truncate(1);
        sketch.computation.launches.push(late);
        assert_refused(&sketch, &["launch 1", &format!("after {after} steps"), "has 2 steps"]);
    }
}

#[test]
fn contents_fit_what_they_are_for() {
    let mut sketch = Sketch::new();
    sketch.input(&[2], FP32, &[1.0]);
    assert_refused(&sketch, &["input 0 has 2 elements, and its contents 1"]);
    let unknown = Contents::default().with("latent", vec![0.0]);
    let error = execute(&sketch.computation, &unknown).unwrap_err();
    assert!(error.to_string().contains("neither an input nor a parameter named latent"), "{error}");
}

#[test]
fn what_no_launch_read_is_named() {
    let mut sketch = Sketch::new();
    let a = sketch.input(&[1], FP32, &[1.0]);
    sketch.input(&[1], FP32, &[1.0]);
    let output = sketch.computed(Kernel::Pointwise(P::Copy), &[&a], &[1], FP32);
    sketch.output(&output);
    assert_eq!(sketch.run().unwrap().unread, ["input 1"]);
}
