/* Tests that equal content is one id, that nodes are hash-consed, and that rewriting copies exactly
 * what roots reach. */
#include "text_helpers.h"

Test(intern, equal_types_attributes_locations_strings_are_one) {
    Graph *g = graph_new("t");
    cr_assert_eq(graph_type_of(g, DT_F32, DIMS(2, 3)), graph_type_of(g, DT_F32, DIMS(2, 3)));
    cr_assert_neq(graph_type_of(g, DT_F32, DIMS(2, 3)), graph_type_of(g, DT_F32, DIMS(3, 2)));
    cr_assert_neq(graph_type_of(g, DT_F32, DIMS(2)), graph_type_of(g, DT_I32, DIMS(2)));
    AttrId one = graph_attr(g, (AttrField[]){attr_int(A_TA, 1), attr_int(A_TB, 0)}, 2);
    cr_assert_eq(one, graph_attr(g, (AttrField[]){attr_int(A_TB, 0), attr_int(A_TA, 1)}, 2));
    cr_assert_neq(one, graph_attr(g, (AttrField[]){attr_int(A_TB, 1), attr_int(A_TA, 1)}, 2));
    cr_assert_eq(graph_attr(g, NULL, 0), 0);
    cr_assert_neq(graph_attr(g, (AttrField[]){attr_float(A_VALUE, 0.0)}, 1),
                  graph_attr(g, (AttrField[]){attr_float(A_VALUE, -0.0)}, 1));
    LocId loc = graph_loc(g, (Loc){LOC_NODE, "n", "Op", NULL, 0});
    cr_assert_eq(loc, graph_loc(g, (Loc){LOC_NODE, "n", "Op", "", 0}));
    cr_assert_eq(graph_loc_derived(g, LOC_GRADIENT, loc), graph_loc_derived(g, LOC_GRADIENT, loc));
    cr_assert_neq(graph_loc_derived(g, LOC_GRADIENT, loc),
                  graph_loc_derived(g, LOC_RECOMPUTE, loc));
    char text[] = "abc";
    cr_assert_eq(graph_str(g, text), graph_str(g, "abc"));
    graph_free(g);
}

Test(intern, attributes_are_copied) {
    Graph *g = graph_new("t");
    int64_t perm[] = {1, 0};
    AttrId id = graph_attr(g, (AttrField[]){attr_ints(A_PERM, perm, 2)}, 1);
    perm[0] = 7;
    cr_assert_eq(g->attrs[id].fields[0].u.ints[0], 1);
    graph_free(g);
}

Test(intern, thousands_stay_distinct) {
    Graph *g = graph_new("t");
    for (int64_t i = 0; i < 5000; i++) cr_assert_eq(graph_type_of(g, DT_F32, DIMS(i)), i + 1);
    for (int64_t i = 0; i < 5000; i++) cr_assert_eq(graph_type_of(g, DT_F32, DIMS(i)), i + 1);
    graph_free(g);
}

Test(emit, equal_nodes_are_one_but_for_their_epoch) {
    Graph *g = graph_new("t");
    Value x = input_of(g, "x", DT_F32, DIMS(2)), y = build_unary(g, OP_neg, x);
    g->loc = graph_loc(g, (Loc){LOC_NODE, "n", "Neg", "", 0});
    cr_assert_eq(build_unary(g, OP_neg, x), y);
    cr_assert_eq(graph_node(g, y)->loc, 0);
    g->epoch = 1;
    Value again = build_unary(g, OP_neg, x);
    cr_assert_neq(again, y);
    cr_assert_eq(graph_node(g, again)->epoch, 1);
    cr_assert_neq(build_binary(g, OP_sub, x, y), build_binary(g, OP_sub, y, x));
    graph_free(g);
}

Test(emit, errors_flow_through_as_none) {
    Graph *g = graph_new("t");
    Value x = input_of(g, "x", DT_F32, DIMS(2));
    cr_assert_eq(graph_emit(g, OP_add, (Value[]){x, 0}, 2, 0, 0), 0);
    cr_assert_eq(g->diags.n, 0);
    Value y = build_dot(g, 0, x, false, false);
    y = build_reshape(
        g, build_expand(g, build_transpose(g, build_cast(g, y, DT_F64), (int64_t[]){0}), DIMS(1)),
        DIMS(1));
    cr_assert_eq(build_sum_to(g, build_mean(g, y, (int64_t[]){0}, 1), graph_type_at(g, x)), 0);
    cr_assert_eq(g->diags.n, 0);
    graph_free(g);
}

Test(emit, fields_with_a_neutral_value_are_filled_in) {
    Graph *g = graph_new("t");
    Value x = input_of(g, "x", DT_F32, DIMS(1, 2, 5, 5)),
          w = input_of(g, "w", DT_F32, DIMS(3, 2, 3, 3));
    Value y = graph_emit(g, OP_conv, (Value[]){x, w}, 2, 0, 0);
    uint32_t n;
    const int64_t *strides = attr_list(g, y, A_STRIDES, &n);
    cr_assert(n == 2 && strides[0] == 1 && strides[1] == 1);
    cr_assert_eq(attr_list(g, y, A_LOW, &n)[1], 0);
    cr_assert_eq(attr_i(g, y, A_GROUPS, -1), 1);
    int64_t ones[] = {1, 1}, zeros[] = {0, 0};
    AttrField fields[] = {attr_ints(A_STRIDES, ones, 2), attr_ints(A_DILATIONS, ones, 2),
                          attr_ints(A_LOW, zeros, 2), attr_ints(A_HIGH, zeros, 2),
                          attr_int(A_GROUPS, 1)};
    cr_assert_eq(graph_emit(g, OP_conv, (Value[]){x, w}, 2, graph_attr(g, fields, 5), 0), y);
    graph_free(g);
}

Test(emit, attributes_are_read_by_key_with_a_default) {
    Graph *g = graph_new("t");
    Value x = input_of(g, "x", DT_F32, DIMS(2));
    cr_assert_str_eq(attr_s(g, x, A_NAME), "x");
    cr_assert_eq(attr_i(g, x, A_AXIS, 7), 7);
    cr_assert(attr_f(g, x, A_EPS, 0.5) == 0.5 && !attr_find(g, x, A_DATA) &&
              !attr_list(g, x, A_PERM, NULL));
    graph_free(g);
}

/* ---------------------------------------------------------------- copies */

static const char source[] =
    "graph m\nloc 1 node 0 a Neg s\nloc 2 gradient 1\nstate w : f32[2] param data=[1, 2]\ninput x "
    ": f32[2]\n"
    "%1 = input : f32[2] name=x\n%2 = neg %1 : f32[2] loc=1\n%3 = exp %1 : f32[2]\n%4 = neg %2 : "
    "f32[2] loc=2 epoch=3\n"
    "entry micro\noutput y = %4\nupdate @w = %2\nentry apply\noutput z = %2\n";

Test(rewrite, without_a_visitor_drops_only_what_no_root_reaches) {
    Graph *from = parse(source, NULL), *to = graph_copy_empty(from);
    Value map[8] = {0};
    graph_rewrite(from, to, NULL, NULL, map);
    graph_free(from);
    char *text = printed(to), *verdict = complaints(to);
    cr_assert_str_empty(verdict);
    cr_assert(map[3] == 0 && map[4] == 3);
    cr_assert_str_eq(text,
                     "graph m\nloc 1 node 0 a Neg s\nloc 2 gradient 1\nstate w : f32[2] param "
                     "data=[1, 2]\ninput x : f32[2]\n"
                     "%1 = input : f32[2] name=x\n%2 = neg %1 : f32[2] loc=1\n%3 = neg %2 : f32[2] "
                     "loc=2 epoch=3\n"
                     "entry micro\noutput y = %3\nupdate @w = %2\nentry apply\noutput z = %2\n");
    free(text), free(verdict);
    graph_free(to);
}

static Value double_neg_away(void *pass, const Graph *from, Value v, Graph *to, const Value *map) {
    ++*(int *)pass;
    cr_assert_eq(to->loc, graph_node(from, v)->loc);
    cr_assert_eq(to->epoch, graph_node(from, v)->epoch);
    Value a = graph_op(from, v) == OP_neg ? graph_operand(from, v, 0) : 0;
    return a && graph_op(from, a) == OP_neg ? map[graph_operand(from, a, 0)] : 0;
}

Test(rewrite, a_visitor_replaces_nodes) {
    Graph *from = parse(source, NULL), *to = graph_copy_empty(from);
    Value map[8] = {0};
    int visits = 0;
    graph_rewrite(from, to, double_neg_away, &visits, map);
    cr_assert_eq(visits, 3);
    cr_assert_eq(graph_root(to, ENTRY_MICRO, false, "y")->value, map[1]);
    cr_assert_eq(to->loc, 0);
    graph_free(from), graph_free(to);
}

Test(rewrite, what_is_mapped_beforehand_is_not_copied_nor_what_only_it_needs) {
    Graph *from = parse(source, NULL), *to = graph_copy_empty(from);
    Value map[8] = {0};
    map[2] = map[4] = build_splat(to, from->nodes[2].type, 5);
    graph_rewrite(from, to, NULL, NULL, map);
    cr_assert_eq(to->n_nodes, 2);
    cr_assert_eq(graph_root(to, ENTRY_APPLY, false, "z")->value, 1);
    graph_free(from), graph_free(to);
}

Test(rewrite, a_copy_keeps_ids_of_types_attributes_and_locations_and_the_diagnostics) {
    Graph *from = parse(source, NULL);
    diag_add(from, E_SHAPES, 1, "odd");
    Graph *to = graph_copy_empty(from);
    cr_assert(to->n_types == from->n_types && to->n_attrs == from->n_attrs &&
              to->n_locs == from->n_locs);
    graph_free(from);
    cr_assert_eq(((const float *)graph_state(to, "w")->source.data)[1], 2);
    cr_assert(to->diags.n == 1 && strcmp(to->diags.items[0].text, "shapes do not fit: odd") == 0 &&
              to->diags.items[0].loc == 1);
    graph_free(to);
}

Test(rewrite, twenty_thousand_nodes) {
    Graph *from = graph_new("t");
    Value x = input_of(from, "x", DT_F32, DIMS(2)), v = x;
    for (int i = 0; i < 10000; i++) v = build_binary(from, OP_add, v, build_unary(from, OP_exp, v));
    graph_add_root(from, ENTRY_EVAL, false, "y", v);
    cr_assert_eq(from->n_nodes, 20002);
    for (int i = 0; i < 5; i++) {
        Graph *to = graph_copy_empty(from);
        Arena *a = arena_new();
        graph_rewrite(from, to, NULL, NULL, arena_alloc(a, from->n_nodes * sizeof(Value)));
        cr_assert_eq(to->n_nodes, from->n_nodes);
        arena_free(a);
        graph_free(from);
        from = to;
    }
    cr_assert(graph_verify(from, stderr));
    graph_free(from);
}

Test(reachable, marks_what_one_entry_needs) {
    Graph *g = parse(source, NULL);
    bool *micro = graph_reachable(g, g->arena, ENTRY_MICRO),
         *apply = graph_reachable(g, g->arena, ENTRY_APPLY),
         *init = graph_reachable(g, g->arena, ENTRY_INIT);
    cr_assert(micro[1] && micro[2] && !micro[3] && micro[4]);
    cr_assert(apply[1] && apply[2] && !apply[3] && !apply[4]);
    cr_assert(!init[1] && !init[2]);
    graph_free(g);
}

Test(state, is_found_by_name_among_thousands) {
    Graph *g = graph_new("t");
    TypeId t = graph_type_of(g, DT_F32, DIMS(2));
    char name[32];
    for (int i = 0; i < 3000; i++) {
        snprintf(name, sizeof name, "layer.%d.w", i);
        graph_add_state(g, (State){.name = name, .type = t, .fill = i});
    }
    cr_assert(graph_state(g, "layer.1234.w")->fill == 1234);
    cr_assert_null(graph_state(g, "layer.3000.w"));
    cr_assert_null(graph_input(g, "layer.1.w"));
    graph_free(g);
}
