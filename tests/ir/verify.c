/* Tests that the verifier finds each kind of damage and says where. */
#include "text_helpers.h"

static Graph *sound(void) {
    return parse("loc 1 node 0 n Neg s\nloc 2 gradient 1\nstate w : f32[2] param\nstate b : i32[2] "
                 "param\ninput x : f32[2]\n"
                 "%1 = input name=x\n%2 = neg %1 loc=1\n%3 = sum %2 axes=[0]\n%4 = add %1 %2\n"
                 "entry micro\noutput y = %4\nupdate @w = %2\n",
                 NULL);
}

static void expect_complaint(Graph *g, const char *what) {
    char *said = complaints(g);
    cr_expect(strstr(said, what), "expected \"%s\", got \"%s\"", what, said);
    cr_assert_eq(g->diags.n, 0);
    free(said);
    graph_free(g);
}

Test(verify, a_sound_graph_passes_without_a_word) {
    Graph *g = sound();
    char *said = complaints(g);
    cr_assert_str_empty(said);
    free(said);
    graph_free(g);
}

Test(verify, operand_after_its_user) {
    Graph *g = sound();
    g->operands[g->nodes[2].operands] = 4;
    expect_complaint(g, "%2 (neg): operand 0 is %4, which does not precede it");
}

Test(verify, operand_none) {
    Graph *g = sound();
    g->operands[g->nodes[2].operands] = 0;
    expect_complaint(g, "%2 (neg): operand 0 is %0");
}

Test(verify, wrong_type) {
    Graph *g = sound();
    g->nodes[2].type = graph_type_of(g, DT_F32, DIMS(3));
    expect_complaint(g, "%2 (neg): type is f32[3], inferred is f32[2]");
}

Test(verify, type_that_does_not_exist) {
    Graph *g = sound();
    g->nodes[2].type = 999;
    expect_complaint(g, "type 999 does not exist");
}

Test(verify, operands_that_do_not_fit) {
    Graph *g = sound();
    g->operands[g->nodes[4].operands + 1] = 3;
    expect_complaint(g, "%4 (add): shapes do not fit: add(f32[2], f32[1]): dims differ");
}

Test(verify, missing_field) {
    Graph *g = sound();
    g->nodes[3].attr = 0;
    expect_complaint(g, "%3 (sum): field axes is missing or does not belong here");
}

Test(verify, field_of_another_op) {
    Graph *g = sound();
    g->nodes[2].attr = g->nodes[3].attr;
    expect_complaint(g, "%2 (neg): field axes is missing or does not belong here");
}

Test(verify, attribute_that_does_not_exist) {
    Graph *g = sound();
    g->nodes[2].attr = 999;
    expect_complaint(g, "attribute 999 does not exist");
}

Test(verify, op_that_is_none) {
    Graph *g = sound();
    g->nodes[2].op = N_OPS;
    expect_complaint(g, "is no op");
}

Test(verify, wrong_arity) {
    Graph *g = sound();
    g->nodes[4].n_operands = 1;
    expect_complaint(g, "%4 (add): 1 operands, not 2");
}

Test(verify, location_that_does_not_exist) {
    Graph *g = sound();
    g->nodes[2].loc = 77;
    expect_complaint(g, "%2 (neg): location 77 does not exist");
}

Test(verify, location_before_its_parent) {
    Graph *g = sound();
    g->locs[1].parent = 2;
    expect_complaint(g, "location 1 precedes its parent 2");
}

Test(verify, two_equal_nodes) {
    Graph *g = sound();
    g->nodes[4] = g->nodes[2];
    expect_complaint(g, "%4 (neg): is the same node as %2");
}

Test(verify, dangling_root) {
    Graph *g = sound();
    graph_root(g, ENTRY_MICRO, false, "y")->value = 99;
    expect_complaint(g, "micro: output y = %99 dangles");
}

Test(verify, root_twice) {
    Graph *g = sound();
    graph_add_root(g, ENTRY_MICRO, false, "y", 1);
    expect_complaint(g, "micro: output y stands twice");
}

Test(verify, update_of_no_state) {
    Graph *g = sound();
    graph_add_root(g, ENTRY_APPLY, true, "q", 1);
    expect_complaint(g, "apply: update @q: there is no such state");
}

Test(verify, update_of_another_type) {
    Graph *g = sound();
    graph_add_root(g, ENTRY_APPLY, true, "b", 1);
    expect_complaint(g, "apply: update @b = %1: the state is i32[2], the value f32[2]");
}

Test(verify, leaf_of_no_input) {
    Graph *g = sound();
    g->nodes[1].attr = graph_attr(g, (AttrField[]){attr_str(A_NAME, "q")}, 1);
    expect_complaint(g, "input(): q is not declared");
}
