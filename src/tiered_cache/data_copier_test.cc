// data_copier
